//! Which CPU cores carry the packets and which the rest.
//!
//! A data core runs one pinned worker and, as far as there are cores enough, nothing else of ours;
//! the control thread gets a core that is left over. Planning is arithmetic on a list, so it is
//! tested without the machine.

use std::fmt;
use thiserror::Error;

/// A CPU as the kernel numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CoreId(pub usize);

impl fmt::Display for CoreId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// What the operator asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CoreRequest {
    /// One worker a core, less one core for control if there are three or more.
    #[default]
    Auto,
    /// This many workers, on the last cores: the first take most interrupts.
    Workers(usize),
    /// One worker on each of these cores.
    Cores(Vec<CoreId>),
}

/// Who runs where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorePlan {
    /// One worker each, pinned.
    pub data: Vec<CoreId>,
    /// The control thread's own core; `None` if the workers have them all, so that it shares.
    pub control: Option<CoreId>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CoreError {
    /// The core does not exist or is not ours to use.
    #[error("core {core} is not available: this process may use {available} (see its CPUAffinity)")]
    NoSuchCore {
        /// The core asked for.
        core: CoreId,
        /// The list of those there are.
        available: String,
    },
    /// A core is listed twice.
    #[error("core {0} is listed twice: one worker runs on a core")]
    Repeated(CoreId),
    /// More workers than cores.
    #[error("{wanted} workers, but {available} cores: at most one worker runs on a core")]
    TooMany {
        /// Workers asked for.
        wanted: usize,
        /// Cores there are.
        available: usize,
    },
    /// No worker at all.
    #[error("at least one worker is needed")]
    NoWorkers,
    /// The operating system does not tell.
    #[error("the operating system does not say which cores this process may use")]
    Unknown,
    /// Pinning failed.
    #[error("this thread could not be pinned to core {0}: check the unit's CPUAffinity")]
    NotPinned(CoreId),
}

/// The cores that this process may use, in ascending order.
///
/// Errors: [`CoreError::Unknown`].
pub fn available_cores() -> Result<Vec<CoreId>, CoreError> {
    let cores = core_affinity::get_core_ids().ok_or(CoreError::Unknown)?;
    let mut cores: Vec<CoreId> = cores.into_iter().map(|core| CoreId(core.id)).collect();
    cores.sort_unstable();
    if cores.is_empty() {
        Err(CoreError::Unknown)
    } else {
        Ok(cores)
    }
}

/// Plans for `request` on `available`, which is in ascending order.
///
/// Errors: [`CoreError`], when the request does not fit the machine.
pub fn plan_cores(request: &CoreRequest, available: &[CoreId]) -> Result<CorePlan, CoreError> {
    let data = match request {
        CoreRequest::Auto if available.len() < 3 => available.to_vec(),
        CoreRequest::Auto => available[1..].to_vec(),
        CoreRequest::Workers(wanted) => {
            let Some(first) = available.len().checked_sub(*wanted) else {
                return Err(CoreError::TooMany {
                    wanted: *wanted,
                    available: available.len(),
                });
            };
            available[first..].to_vec()
        }
        CoreRequest::Cores(cores) => {
            check_cores(cores, available)?;
            cores.clone()
        }
    };
    if data.is_empty() {
        return Err(CoreError::NoWorkers);
    }
    let control = available.iter().find(|core| !data.contains(core)).copied();
    Ok(CorePlan { data, control })
}

fn check_cores(cores: &[CoreId], available: &[CoreId]) -> Result<(), CoreError> {
    for (index, &core) in cores.iter().enumerate() {
        if !available.contains(&core) {
            let list: Vec<String> = available.iter().map(CoreId::to_string).collect();
            return Err(CoreError::NoSuchCore {
                core,
                available: list.join(", "),
            });
        }
        if cores[..index].contains(&core) {
            return Err(CoreError::Repeated(core));
        }
    }
    Ok(())
}

/// Pins the calling thread, and the threads it starts, to one core.
///
/// Errors: [`CoreError::NotPinned`].
pub fn pin_current_thread(core: CoreId) -> Result<(), CoreError> {
    // The crate indexes the kernel's set without a check, and would abort the process.
    let is_countable = core.0 < libc::CPU_SETSIZE as usize;
    let id = core_affinity::CoreId { id: core.0 };
    if is_countable && core_affinity::set_for_current(id) {
        Ok(())
    } else {
        Err(CoreError::NotPinned(core))
    }
}

/// Steps that [`give_way`] goes down: to a tenth of the weight of the process's other threads, one
/// of which is then run at once when it wakes up (sched(7), "The nice value").
const GIVE_WAY_STEPS: i32 = 10;

/// Lets every other thread of the process go before the calling one, and before those it starts.
pub fn give_way() {
    // Nobody is refused it but by a SystemCallFilter that forgets setpriority.
    if let Err(error) = crate::uring::syscall::lower_priority(GIVE_WAY_STEPS) {
        tracing::warn!(%error, "a thread keeps the priority it has");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(ids: &[usize]) -> Vec<CoreId> {
        ids.iter().copied().map(CoreId).collect()
    }

    fn plan(request: CoreRequest, available: &[usize]) -> Result<CorePlan, CoreError> {
        plan_cores(&request, &cores(available))
    }

    #[test]
    fn few_cores_are_shared_between_workers_and_control() {
        for available in [&[0][..], &[0, 1]] {
            let planned = plan(CoreRequest::Auto, available).unwrap();
            assert_eq!(
                planned,
                CorePlan {
                    data: cores(available),
                    control: None
                }
            );
        }
    }

    #[test]
    fn from_three_cores_on_control_gets_the_first() {
        let planned = plan(CoreRequest::Auto, &[2, 3, 5, 7]).unwrap();
        let expected = CorePlan {
            data: cores(&[3, 5, 7]),
            control: Some(CoreId(2)),
        };
        assert_eq!(planned, expected);
    }

    #[test]
    fn a_number_of_workers_takes_the_last_cores() {
        let planned = plan(CoreRequest::Workers(1), &[0, 1]).unwrap();
        assert_eq!(
            planned,
            CorePlan {
                data: cores(&[1]),
                control: Some(CoreId(0))
            }
        );
        let planned = plan(CoreRequest::Workers(2), &[0, 1]).unwrap();
        assert_eq!(
            planned,
            CorePlan {
                data: cores(&[0, 1]),
                control: None
            }
        );
    }

    #[test]
    fn more_workers_than_cores_is_an_error_with_both_numbers() {
        let error = plan(CoreRequest::Workers(3), &[0, 1]).unwrap_err();
        assert_eq!(
            error,
            CoreError::TooMany {
                wanted: 3,
                available: 2
            }
        );
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error_that_lists_those_that_do() {
        let error = plan(CoreRequest::Cores(cores(&[1, 9])), &[0, 1]).unwrap_err();
        assert!(
            error.to_string().contains("core 9 is not available"),
            "{error}"
        );
        assert!(error.to_string().contains("0, 1"), "{error}");
    }

    #[test]
    fn a_repeated_core_and_an_empty_plan_are_errors() {
        let repeated = plan(CoreRequest::Cores(cores(&[1, 1])), &[0, 1]);
        assert_eq!(repeated, Err(CoreError::Repeated(CoreId(1))));
        assert_eq!(
            plan(CoreRequest::Workers(0), &[0, 1]),
            Err(CoreError::NoWorkers)
        );
        assert_eq!(
            plan(CoreRequest::Cores(vec![]), &[0, 1]),
            Err(CoreError::NoWorkers)
        );
    }

    #[test]
    fn a_pinned_thread_has_one_core_left() {
        let core = available_cores().unwrap()[0];
        let left = std::thread::spawn(move || {
            pin_current_thread(core).unwrap();
            available_cores().unwrap()
        });
        assert_eq!(left.join().unwrap(), [core]);
    }

    #[test]
    fn pinning_to_a_core_that_does_not_exist_fails() {
        for core in [CoreId(1_000), CoreId(4_000)] {
            let error = pin_current_thread(core).unwrap_err();
            assert_eq!(error, CoreError::NotPinned(core));
        }
    }

    #[test]
    fn who_gives_way_has_a_lower_priority_alone() {
        let nice = || {
            // Field 19 of /proc/thread-self/stat, behind a name that may hold blanks.
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let behind_name = stat.rsplit(')').next().unwrap();
            let field = behind_name.split_whitespace().nth(16).unwrap();
            field.parse::<i32>().unwrap()
        };
        /// `NICE_MAX` of the kernel's sched/prio.h.
        const LOWEST: i32 = 19;
        let before = nice();
        let below = std::thread::spawn(move || {
            give_way();
            nice()
        });
        let expected = LOWEST.min(before + GIVE_WAY_STEPS);
        assert_eq!(below.join().unwrap(), expected);
        assert_eq!(nice(), before);
    }
}
