//! One source file as the rules see it: its text, and its tokens in one flat row.
//!
//! Tokens rather than a syntax tree: the row covers the bodies of macros (`proptest!`,
//! `tokio::select!`), which a parser leaves opaque, and a string literal is one token, so that a
//! word inside it trips nothing.

use std::fmt;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A token and the line it stands on, counted from 1. Brackets are tokens of their own and `::` is
/// one token.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// A breach of a rule, printed as compilers print theirs so that editors can jump to it.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) remark: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.remark)
    }
}

pub(crate) struct Source {
    /// Relative to the workspace, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Empty when the text is no Rust; the compiler says so better than a rule could.
    pub(crate) tokens: Vec<Token>,
}

impl Source {
    pub(crate) fn new(path: &str, text: String) -> Self {
        let mut tokens = Vec::new();
        if let Ok(stream) = text.parse::<TokenStream>() {
            flatten(stream, &mut tokens);
        }
        Self {
            path: path.to_owned(),
            text,
            tokens,
        }
    }

    pub(crate) fn finding(&self, line: usize, remark: impl Into<String>) -> Finding {
        Finding {
            path: self.path.clone(),
            line,
            remark: remark.into(),
        }
    }

    /// Folders and file stem: the names of the modules the path spells.
    pub(crate) fn path_names(&self) -> impl Iterator<Item = &str> {
        self.path.trim_end_matches(".rs").split('/')
    }

    /// Text of the lines before the one numbered `line`, nearest first, without indentation.
    pub(crate) fn lines_above(&self, line: usize) -> impl Iterator<Item = &str> {
        let above: Vec<&str> = self.text.lines().take(line.saturating_sub(1)).collect();
        above.into_iter().rev().map(str::trim)
    }
}

/// Whether the tokens from `at` on read exactly like this.
pub(crate) fn reads(tokens: &[Token], at: usize, words: &[&str]) -> bool {
    tokens.get(at..at + words.len()).is_some_and(|found| {
        found
            .iter()
            .zip(words)
            .all(|(token, word)| token.text == *word)
    })
}

/// Index of the bracket that closes the one at `open`.
pub(crate) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    tokens.len() - 1
}

/// First index from `at` on, outside nested brackets, whose token is one of `words`. A closing
/// bracket of the enclosing level ends the search.
pub(crate) fn next_outside(tokens: &[Token], mut at: usize, words: &[&str]) -> Option<usize> {
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            text if words.contains(&text) => return Some(at),
            "{" | "(" | "[" => at = closing(tokens, at),
            "}" | ")" | "]" => return None,
            _ => {}
        }
        at += 1;
    }
    None
}

/// The tokens without what only tests see: each item under `#[cfg(test)]`.
pub(crate) fn without_tests(tokens: &[Token]) -> Vec<Token> {
    const TEST_ONLY: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if !reads(tokens, at, &TEST_ONLY) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at = match next_outside(tokens, at + TEST_ONLY.len(), &["{", ";"]) {
            Some(body) if tokens[body].text == "{" => closing(tokens, body) + 1,
            Some(end) => end + 1,
            None => at + TEST_ONLY.len(),
        };
    }
    kept
}

fn flatten(stream: TokenStream, row: &mut Vec<Token>) {
    let mut joined = false;
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = brackets(group.delimiter());
                push(row, open, group.span_open().start().line);
                flatten(group.stream(), row);
                push(row, close, group.span_close().start().line);
                joined = false;
            }
            TokenTree::Punct(punct) => {
                let second_colon = joined && punct.as_char() == ':';
                if second_colon {
                    row.last_mut().expect("the first colon").text.push(':');
                } else {
                    push(row, &punct.as_char().to_string(), line);
                }
                let opens_pair = punct.as_char() == ':' && punct.spacing() == Spacing::Joint;
                joined = opens_pair && !second_colon;
            }
            TokenTree::Ident(ident) => {
                push(row, &ident.to_string(), line);
                joined = false;
            }
            TokenTree::Literal(literal) => {
                push(row, &literal.to_string(), line);
                joined = false;
            }
        }
    }
}

fn push(row: &mut Vec<Token>, text: &str, line: usize) {
    if !text.is_empty() {
        row.push(Token {
            text: text.to_owned(),
            line,
        });
    }
}

fn brackets(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Vec<String> {
        let source = Source::new("a.rs", text.to_owned());
        source.tokens.into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn brackets_and_double_colons_are_single_tokens() {
        assert_eq!(
            row("a::b({ x: y });"),
            ["a", "::", "b", "(", "{", "x", ":", "y", "}", ")", ";"]
        );
    }

    #[test]
    fn lines_are_counted_from_one_through_nested_brackets() {
        let source = Source::new(
            "a.rs",
            "fn f() {\n    g(\n        1,\n    );\n}\n".to_owned(),
        );
        let lines: Vec<usize> = source.tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5]);
    }

    #[test]
    fn items_only_tests_see_are_left_out() {
        let text =
            "use a::b;\n#[cfg(test)]\nuse c::d;\n#[cfg(test)]\nmod tests { fn f() {} }\nfn g() {}";
        let source = Source::new("a.rs", text.to_owned());
        let kept: Vec<String> = without_tests(&source.tokens)
            .into_iter()
            .map(|t| t.text)
            .collect();
        assert_eq!(
            kept,
            ["use", "a", "::", "b", ";", "fn", "g", "(", ")", "{", "}"]
        );
    }
}
