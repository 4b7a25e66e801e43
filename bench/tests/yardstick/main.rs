//! The yardsticks judged by what they must hold themselves.

mod calls;
mod relay;
