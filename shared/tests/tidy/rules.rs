//! The rules that count: sizes, openings, names, leftovers, and where `unsafe` may stand.

use super::source::{Finding, Source, closing, next_outside, reads};

/// Every rule of this file.
pub(crate) const ALL: [fn(&Source) -> Vec<Finding>; 9] = [
    opens_with_why,
    functions_fit_a_screen,
    lines_fit_the_page,
    files_stay_readable,
    unsafe_stays_in_its_folder,
    unsafe_gives_its_reason,
    nothing_is_left_over,
    modules_are_nouns,
    accessors_have_no_prefix,
];

const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 100;
const CODE_LINES_MAX: usize = 500;

/// The only folder that may speak to the kernel without the compiler's help.
const UNSAFE_FOLDER: &str = "shared/src/uring";

/// Names that say where code was put instead of what it is.
const VAGUE_MODULES: [&str; 10] = [
    "util", "utils", "helper", "helpers", "common", "types", "manager", "managers", "misc", "stuff",
];

/// Written in two halves so that this file keeps its own rule.
const LEFTOVER_WORDS: [&str; 4] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
];

const LEFTOVER_MACROS: [&str; 3] = ["dbg", "todo", "unimplemented"];

/// A reader meets the reason for a file before its code.
fn opens_with_why(source: &Source) -> Vec<Finding> {
    let first = source.text.lines().next().unwrap_or_default();
    let says_something = first
        .strip_prefix("//!")
        .is_some_and(|why| !why.trim().is_empty());
    if says_something {
        return Vec::new();
    }
    vec![source.finding(1, "the file does not open with `//!` and why it exists")]
}

fn functions_fit_a_screen(source: &Source) -> Vec<Finding> {
    let tokens = &source.tokens;
    let mut findings = Vec::new();
    for at in (0..tokens.len()).filter(|at| names_function(source, *at)) {
        let Some(body) = next_outside(tokens, at, &["{", ";"]) else {
            continue;
        };
        let lines = tokens[closing(tokens, body)].line - tokens[at].line + 1;
        if tokens[body].text == "{" && lines > FUNCTION_LINES_MAX {
            let name = &tokens[at + 1].text;
            let remark = format!("fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}");
            findings.push(source.finding(tokens[at].line, remark));
        }
    }
    findings
}

fn lines_fit_the_page(source: &Source) -> Vec<Finding> {
    let widths = source.text.lines().map(|line| line.chars().count());
    let wide = (1..)
        .zip(widths)
        .filter(|(_, columns)| *columns > COLUMNS_MAX);
    wide.map(|(line, columns)| {
        source.finding(line, format!("{columns} columns, at most {COLUMNS_MAX}"))
    })
    .collect()
}

fn files_stay_readable(source: &Source) -> Vec<Finding> {
    const TEST_MODULE: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
    let tokens = &source.tokens;
    let tests = (0..tokens.len()).find(|at| reads(tokens, *at, &TEST_MODULE));
    let before_tests = tests.map_or(usize::MAX, |at| tokens[at].line - 1);
    let code = source.text.lines().take(before_tests).map(str::trim);
    let count = code
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count();
    if count <= CODE_LINES_MAX {
        return Vec::new();
    }
    let remark = format!("{count} code lines before the tests, at most {CODE_LINES_MAX}");
    vec![source.finding(1, remark)]
}

fn unsafe_stays_in_its_folder(source: &Source) -> Vec<Finding> {
    if source.path.starts_with(UNSAFE_FOLDER) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        let lifted = ["allow", "expect", "warn"]
            .iter()
            .any(|level| reads(&source.tokens, at, &[level, "(", "unsafe_code"]));
        if token.text == "unsafe" || lifted {
            let remark = format!("`unsafe` belongs to {UNSAFE_FOLDER} alone");
            findings.push(source.finding(token.line, remark));
        }
    }
    findings
}

/// A block or impl has `// SAFETY:` above it or above its statement; an `unsafe fn` documents
/// `# Safety` for its callers.
fn unsafe_gives_its_reason(source: &Source) -> Vec<Finding> {
    let tokens = &source.tokens;
    let mut findings = Vec::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at].text == "unsafe") {
        // At most `extern "C"` stands between the two words.
        let function = (at + 1..tokens.len().min(at + 4)).find(|at| tokens[*at].text == "fn");
        let is_pointer = function.is_some_and(|at| reads(tokens, at + 1, &["("]));
        let word = if function.is_some() {
            "# Safety"
        } else {
            "SAFETY:"
        };
        let line = tokens[at].line;
        let statement = tokens[statement_start(source, at)].line;
        let is_explained = [line, statement]
            .iter()
            .any(|line| comment_says(source, *line, word));
        if !is_pointer && !is_explained {
            findings.push(source.finding(line, format!("`unsafe` without `{word}` above it")));
        }
    }
    findings
}

fn nothing_is_left_over(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(source.text.lines()) {
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        if let Some(word) = words.find(|word| LEFTOVER_WORDS.contains(word)) {
            findings.push(source.finding(line, format!("left over: {word}")));
        }
    }
    for (at, token) in source.tokens.iter().enumerate() {
        let word = token.text.as_str();
        let is_macro = LEFTOVER_MACROS.contains(&word) && reads(&source.tokens, at + 1, &["!"]);
        let is_skipped = reads(&source.tokens, at, &["#", "[", "ignore"]);
        if is_macro || is_skipped {
            let name = if is_skipped { "ignore" } else { word };
            findings.push(source.finding(token.line, format!("left over: {name}")));
        }
    }
    findings
}

fn modules_are_nouns(source: &Source) -> Vec<Finding> {
    let tokens = &source.tokens;
    let inline = tokens.windows(2).filter(|pair| pair[0].text == "mod");
    let named = inline.map(|pair| (pair[1].line, pair[1].text.as_str()));
    let names = source.path_names().map(|name| (1, name)).chain(named);
    names
        .filter(|(_, name)| VAGUE_MODULES.contains(name))
        .map(|(line, name)| source.finding(line, format!("module `{name}` names no noun")))
        .collect()
}

fn accessors_have_no_prefix(source: &Source) -> Vec<Finding> {
    let tokens = &source.tokens;
    (0..tokens.len())
        .filter(|at| names_function(source, *at) && tokens[at + 1].text.starts_with("get_"))
        .map(|at| {
            let name = &tokens[at + 1].text;
            source.finding(tokens[at].line, format!("fn {name}: drop the `get_`"))
        })
        .collect()
}

/// Whether a function's declaration, not a function pointer's type, starts here.
fn names_function(source: &Source, at: usize) -> bool {
    let next = source.tokens.get(at + 1);
    source.tokens[at].text == "fn" && next.is_some_and(|token| token.text != "(")
}

fn statement_start(source: &Source, at: usize) -> usize {
    let ends = |index: &usize| [";", "{", "}"].contains(&source.tokens[*index].text.as_str());
    (0..at).rev().find(ends).map_or(0, |index| index + 1)
}

/// Whether this line, or the comments and attributes right above it, contain the word.
fn comment_says(source: &Source, line: usize, word: &str) -> bool {
    let own = source.text.lines().nth(line - 1).unwrap_or_default();
    let mut above = source
        .lines_above(line)
        .take_while(|text| text.starts_with("//") || text.starts_with("#["));
    own.contains(word) || above.any(|text| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
        let source = Source::new(path, text.to_owned());
        rule(&source)
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_file_without_its_why_is_found() {
        assert_eq!(lines(opens_with_why, "a.rs", "use a::b;\n"), [1]);
        assert_eq!(lines(opens_with_why, "a.rs", "//!\n//! Late.\n"), [1]);
        assert!(lines(opens_with_why, "a.rs", "//! Owns a.\n").is_empty());
    }

    #[test]
    fn a_function_of_71_lines_is_found_even_inside_a_macro() {
        let body = "    x();\n".repeat(69);
        let long = format!("proptest! {{\nfn f(a: [u8; 2]) -> u8 {{\n{body}}}\n}}");
        assert_eq!(lines(functions_fit_a_screen, "a.rs", &long), [2]);
        let fits = long.replacen("    x();\n", "", 1);
        assert!(lines(functions_fit_a_screen, "a.rs", &fits).is_empty());
    }

    #[test]
    fn a_declaration_without_body_and_a_pointer_type_are_no_long_functions() {
        let filler = "x();\n".repeat(90);
        let text =
            format!("trait T {{ fn f(&self); }}\nconst P: fn(u8) = q;\nmacro! {{ {filler} }}");
        assert!(lines(functions_fit_a_screen, "a.rs", &text).is_empty());
    }

    #[test]
    fn a_line_of_101_columns_is_found_and_columns_are_characters() {
        let text = format!(
            "{}\n{}\n{}\n",
            "ä".repeat(100),
            "a".repeat(101),
            "a".repeat(100)
        );
        assert_eq!(lines(lines_fit_the_page, "a.rs", &text), [2]);
    }

    #[test]
    fn only_code_before_the_tests_counts_towards_a_files_size() {
        let allowed = "const A: u8 = 1;\n\n// why\n".repeat(500);
        let tests = "#[cfg(test)]\nmod tests {\nconst B: u8 = 1;\nconst C: u8 = 1;\n}\n";
        assert!(lines(files_stay_readable, "a.rs", &format!("{allowed}{tests}")).is_empty());
        let over = format!("{allowed}const D: u8 = 1;\n{tests}");
        assert_eq!(lines(files_stay_readable, "a.rs", &over), [1]);
    }

    #[test]
    fn unsafe_outside_its_folder_is_found_and_so_is_lifting_the_lint() {
        let text = "#![allow(unsafe_code)]\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(
            lines(unsafe_stays_in_its_folder, "relay/src/a.rs", text),
            [1, 3]
        );
        assert!(lines(unsafe_stays_in_its_folder, "shared/src/uring/a.rs", text).is_empty());
        let harmless = "#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe {\";\n";
        assert!(lines(unsafe_stays_in_its_folder, "relay/src/a.rs", harmless).is_empty());
    }

    #[test]
    fn unsafe_without_its_reason_is_found() {
        let path = "shared/src/uring/a.rs";
        let bare = "fn f() {\n    let a = unsafe { g() };\n}\nunsafe impl Send for A {}\n";
        assert_eq!(lines(unsafe_gives_its_reason, path, bare), [2, 4]);
        let undocumented = "/// Does.\npub unsafe fn f() {}\n";
        assert_eq!(lines(unsafe_gives_its_reason, path, undocumented), [2]);
    }

    #[test]
    fn a_reason_above_the_block_the_statement_or_the_function_is_enough() {
        let path = "shared/src/uring/a.rs";
        let block = "fn f() {\n    // SAFETY: g is\n    // harmless.\n    unsafe { g() }\n}\n";
        assert!(lines(unsafe_gives_its_reason, path, block).is_empty());
        let statement = "fn f() {\n    // SAFETY: fine.\n    let a = h(\n    unsafe { g() });\n}\n";
        assert!(lines(unsafe_gives_its_reason, path, statement).is_empty());
        let function = "/// # Safety\n/// Hold it.\n#[inline]\nunsafe fn f() {}\n";
        assert!(lines(unsafe_gives_its_reason, path, function).is_empty());
        let pointer = "struct A(unsafe fn(u8));\ntype B = unsafe extern \"C\" fn(u8);\n";
        assert!(lines(unsafe_gives_its_reason, path, pointer).is_empty());
    }

    #[test]
    fn leftovers_are_found_in_comments_and_code() {
        let word = LEFTOVER_WORDS[0];
        let text = format!(
            "// {word}: later\nfn f() {{\n    {}!(x);\n}}\n",
            LEFTOVER_MACROS[0]
        );
        assert_eq!(lines(nothing_is_left_over, "a.rs", &text), [1, 3]);
        let skipped = "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n";
        assert_eq!(lines(nothing_is_left_over, "a.rs", skipped), [2]);
        let innocent = format!("// my{word}s\nlet todo = dbg + 1;\n// ignore\n");
        assert!(lines(nothing_is_left_over, "a.rs", &innocent).is_empty());
    }

    #[test]
    fn a_vague_module_name_is_found_in_paths_and_declarations() {
        assert_eq!(
            lines(modules_are_nouns, "relay/src/utils.rs", "//! A.\n"),
            [1]
        );
        assert_eq!(
            lines(modules_are_nouns, "relay/src/helpers/a.rs", "//! A.\n"),
            [1]
        );
        assert_eq!(
            lines(modules_are_nouns, "a.rs", "mod a;\npub mod common;\n"),
            [2]
        );
        assert!(lines(modules_are_nouns, "shared/src/route.rs", "mod demux;\n").is_empty());
    }

    #[test]
    fn a_prefixed_accessor_is_found() {
        let text = "impl A {\n    pub fn get_b(&self) {}\n    fn get(&self) {}\n}\n";
        assert_eq!(lines(accessors_have_no_prefix, "a.rs", text), [2]);
    }
}
