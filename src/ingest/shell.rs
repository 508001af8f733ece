//! A shell's command line taken apart as far as it says what will be printed and written.

/// One program and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Simple {
    /// The program and its arguments, without quotes.
    pub words: Vec<String>,
    /// Files that its output is written to.
    pub writes: Vec<String>,
    /// True where its input stands in the command line.
    pub has_heredoc: bool,
}

/// Programs that are joined by pipes.
pub(super) type Pipeline = Vec<Simple>;

/// The pipelines of a command line in their order, whatever joins them.
pub(super) fn parse(text: &str) -> Vec<Pipeline> {
    let mut parser = Parser { rest: text, ..Parser::default() };
    while parser.step() {}
    parser.end_pipeline();
    parser.pipelines
}

/// What the next word is, where it is no argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expects {
    #[default]
    Argument,
    File,
    /// The word that ends a here-document.
    Delimiter,
    Ignored,
}

#[derive(Default)]
struct Parser<'a> {
    rest: &'a str,
    pipelines: Vec<Pipeline>,
    pipeline: Pipeline,
    simple: Simple,
    expects: Expects,
    /// Words that end here-documents, which begin on the next line.
    delimiters: Vec<String>,
}

impl<'a> Parser<'a> {
    /// Takes one token; false at the end.
    fn step(&mut self) -> bool {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
        if let Some(rest) = self.rest.strip_prefix("\\\n") {
            self.rest = rest;
            return true;
        }
        if self.operator() {
            return true;
        }
        if let Some(rest) = redirect(self.rest) {
            self.rest = rest;
            self.expects = Expects::File;
            return true;
        }
        if self.rest.is_empty() {
            return false;
        }
        let word = self.word();
        match std::mem::take(&mut self.expects) {
            Expects::Argument => self.simple.words.push(word),
            // `2>&1` writes to no file.
            Expects::File if word.starts_with('&') => {}
            Expects::File => self.simple.writes.push(word),
            Expects::Delimiter => {
                self.simple.has_heredoc = true;
                self.delimiters.push(word);
            }
            Expects::Ignored => {}
        }
        true
    }

    /// Takes an operator, where one comes next.
    fn operator(&mut self) -> bool {
        // The longer stand before those that they begin with.
        let operators = [
            "\n", "&&", "||", "|&", "|", ";", "&>>", "&>", "&", "<<<", "<<-", "<<", "<", ")", "(",
            "#",
        ];
        let found = operators.iter().find(|operator| self.rest.starts_with(**operator));
        let Some(operator) = found else { return false };
        self.rest = &self.rest[operator.len()..];
        match *operator {
            "\n" => self.end_line(),
            "|" | "|&" => self.end_simple(),
            "&>" | "&>>" => self.expects = Expects::File,
            "<<" | "<<-" => self.expects = Expects::Delimiter,
            "<" | "<<<" => self.expects = Expects::Ignored,
            "#" => self.skip_line(),
            _ => self.end_pipeline(),
        }
        true
    }

    /// Takes a word, with its quotes resolved.
    fn word(&mut self) -> String {
        let mut word = String::new();
        let mut chars = self.rest.char_indices();
        // Inside `$(…)`, blanks and operators belong to the word.
        let mut depth = 0_usize;
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            let is_end = match c {
                ' ' | '\t' | '\n' | '\r' | ';' | '|' | '<' | '>' | ')' => depth == 0,
                '&' => depth == 0 && at > 0,
                _ => false,
            };
            if is_end {
                end = at;
                break;
            }
            match c {
                '\'' => word.extend(chars.by_ref().map(|(_, c)| c).take_while(|c| *c != '\'')),
                '"' => {
                    while let Some((_, c)) = chars.next().filter(|(_, c)| *c != '"') {
                        match c {
                            '\\' => word.extend(chars.next().map(|(_, c)| c)),
                            c => word.push(c),
                        }
                    }
                }
                '\\' => word.extend(chars.next().map(|(_, c)| c).filter(|c| *c != '\n')),
                '(' => {
                    depth += 1;
                    word.push(c);
                }
                ')' => {
                    depth -= 1;
                    word.push(c);
                }
                c => word.push(c),
            }
        }
        self.rest = &self.rest[end..];
        word
    }

    fn end_simple(&mut self) {
        let simple = std::mem::take(&mut self.simple);
        self.expects = Expects::Argument;
        if !simple.words.is_empty() || !simple.writes.is_empty() {
            self.pipeline.push(simple);
        }
    }

    fn end_pipeline(&mut self) {
        self.end_simple();
        if !self.pipeline.is_empty() {
            self.pipelines.push(std::mem::take(&mut self.pipeline));
        }
    }

    fn end_line(&mut self) {
        self.end_pipeline();
        for delimiter in std::mem::take(&mut self.delimiters) {
            self.skip_document(&delimiter);
        }
    }

    fn skip_document(&mut self, delimiter: &str) {
        while !self.rest.is_empty() {
            let line = self.take_line();
            if line.trim() == delimiter {
                return;
            }
        }
    }

    fn skip_line(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        self.rest = &self.rest[end..];
    }

    fn take_line(&mut self) -> &'a str {
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        line
    }
}

/// The text behind `>`, `>>` or `2>`, where it begins with one.
fn redirect(text: &str) -> Option<&str> {
    let text = text.strip_prefix(['1', '2']).filter(|rest| rest.starts_with('>')).unwrap_or(text);
    let rest = text.strip_prefix('>')?;
    let rest = rest.strip_prefix(['>', '|']).unwrap_or(rest);
    // A word that begins with `&` would be taken for the operator.
    match rest.strip_prefix('&') {
        Some(rest) => Some(rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-')),
        None => Some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<Vec<String>>> {
        let simple = |simple: Simple| simple.words;
        parse(text).into_iter().map(|line| line.into_iter().map(simple).collect()).collect()
    }

    #[test]
    fn a_line_is_taken_apart_as_a_shell_does() {
        assert_eq!(
            words("cd /x && A=1 pytest -k 'a b' 2>&1 | tail -n 5; echo \"done \\\"x\\\"\""),
            [
                vec![vec!["cd", "/x"]],
                vec![vec!["A=1", "pytest", "-k", "a b"], vec!["tail", "-n", "5"]],
                vec![vec!["echo", "done \"x\""]],
            ]
        );
        assert_eq!(words("echo $(cat a | wc -l) b"), [[["echo", "$(cat a | wc -l)", "b"]]]);
        assert_eq!(words("a \\\n b # c | d\ne &"), [[["a", "b"].to_vec()], [vec!["e"]]]);
    }

    #[test]
    fn what_is_written_is_told_from_what_is_read() {
        let parsed = parse("cat <<'EOF' > a.py 2>/dev/null\nprint(1) > x\nEOF\nls < b");
        let [cat, ls] = &parsed[..] else { panic!("{parsed:?}") };
        assert_eq!(cat[0].writes, ["a.py", "/dev/null"]);
        assert!(cat[0].has_heredoc);
        assert_eq!(ls[0], Simple { words: vec!["ls".into()], ..Simple::default() });
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_taken_apart(text in "[a-c'\"\\\\$()|&;<>#\n 12]*|\\PC*") {
            parse(&text);
        }
    }
}
