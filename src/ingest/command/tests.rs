use super::*;
use crate::ingest::act::At;

fn shown(line: &str) -> Act {
    let Act { kind, path, lines, .. } = act(line);
    Act { kind, path, lines, ..Act::default() }
}

#[test]
fn views_name_their_file_and_lines() {
    let cases = [
        ("cat src/a.rs", "src/a.rs", Some((1, None))),
        ("cd /x && cat -n src/a.rs 2>&1", "/x/src/a.rs", Some((1, None))),
        ("head -n 20 a.py", "a.py", Some((1, Some(20)))),
        ("head -50 a.py", "a.py", Some((1, Some(50)))),
        ("cat a.py | head -n 5", "a.py", Some((1, Some(5)))),
        ("tail -n +30 a.py", "a.py", Some((30, None))),
        ("tail -20 a.py", "a.py", None),
        ("sed -n '10,20p' a.py", "a.py", Some((10, Some(20)))),
        ("sed -n 10,20p\\;20q a.py", "a.py", Some((10, Some(20)))),
        ("sed -n '7p' a.py", "a.py", Some((7, Some(7)))),
        ("sed -n '5,$p' a.py", "a.py", Some((5, None))),
        ("sed -n '/foo/,/bar/p' a.py", "a.py", None),
        ("sed -n '1,5p;10,15p' a.py", "a.py", None),
        ("nl -ba a.py | sed -n '130,145p'", "a.py", Some((130, Some(145)))),
        ("awk 'NR>=3 && NR<=9' a.py", "a.py", Some((3, Some(9)))),
        ("timeout 60 bash -lc 'cat a.py'", "a.py", Some((1, None))),
        ("git show HEAD~1:src/a.rs", "src/a.rs", Some((1, None))),
    ];
    for (line, path, lines) in cases {
        let path = Some(path.to_owned());
        let view = Act { kind: Some(Kind::FileView), path, lines, ..Act::default() };
        assert_eq!(shown(line), view, "{line}");
    }
    let view = Act { kind: Some(Kind::FileView), ..Act::default() };
    assert_eq!(shown("cat a.py b.py"), view, "which lines are whose is unknown");
}

#[test]
fn programs_are_known_by_what_they_print() {
    use Kind::{Diff, Listing, Log, Search};
    let cases = [
        ("grep -rn foo src | head -20", Some(Search)),
        ("cat a.py | grep foo", Some(Search)),
        ("find . -name '*.py' | xargs grep -l foo", Some(Search)),
        ("rg foo", Some(Search)),
        ("find . -name '*.py' | grep -i alias", Some(Listing)),
        ("ls -la && pwd", Some(Listing)),
        ("git status --short", Some(Listing)),
        ("git diff --stat", Some(Listing)),
        ("git add -A && git diff --cached", Some(Diff)),
        ("git show HEAD", Some(Diff)),
        ("cd x && python -m pytest tests -x 2>&1 | tail -20", Some(Log)),
        ("PYTHONPATH=. timeout 100 pytest -q", Some(Log)),
        ("uv run pytest", Some(Log)),
        ("python3 -W ignore -m unittest -v", Some(Log)),
        ("./tests/runtests.py admin", Some(Log)),
        ("python manage.py test", Some(Log)),
        ("RUST_BACKTRACE=1 cargo test -p x 2>&1 | grep -A5 error", Some(Log)),
        ("cargo build && cargo test", Some(Log)),
        ("go test ./...", Some(Log)),
        ("npx jest --ci", Some(Log)),
        ("npm run build", Some(Log)),
        ("make -j4 2>&1 | tee build.log | tail", Some(Log)),
        ("gcc -o a a.c", Some(Log)),
        ("pip install -e .", Some(Log)),
        ("python x.py", None),
        ("cat run.log", None),
        ("cargo test > out.txt; cat a.py; ls", None),
        ("ls | wc -l", None),
        ("echo hello", None),
        ("", None),
    ];
    for (line, kind) in cases {
        assert_eq!(act(line).kind, kind, "{line}");
    }
}

#[test]
fn edits_say_where_a_file_may_differ() {
    let touched = |line: &str| act(line).touches;
    let at = |path: &str, at| vec![Touch { path: Some(path.to_owned()), at }];
    assert_eq!(touched("sed -i 's/a/b/' x.py"), at("x.py", At::All));
    assert_eq!(touched("cd d && sed -i '30a\\ foo' x.py"), at("d/x.py", At::Line(30)));
    assert_eq!(touched("cat <<'EOF' > x.py\nrm y\nEOF"), at("x.py", At::All));
    assert_eq!(touched("rm x.py"), at("x.py", At::All));
    for line in ["python fix.py", "git checkout .", "cargo fmt", "ruff check --fix", "./gen.sh"] {
        assert_eq!(touched(line), [Touch::ANY], "{line}");
    }
    let reads = ["cat a", "cargo test 2>/dev/null", "pytest", "ls | wc -l", "git log", "echo x"];
    for line in reads {
        assert_eq!(touched(line), [], "{line}");
    }
}

#[test]
fn runs_of_one_tool_are_of_a_family() {
    let named = |line: &str| family(line);
    let pair = |family: &str, whole: &str| Some((family.to_owned(), whole.to_owned()));
    let cargo = pair("cargo test", "cargo test -p x");
    assert_eq!(named("cd y && cargo test -p x 2>&1 | tail -5"), cargo);
    assert_eq!(named("timeout 9 cargo test -p x"), cargo);
    assert_eq!(named("python3 -m pytest tests/a.py"), pair("pytest", "pytest tests/a.py"));
    assert_eq!(named("python3 run.py | head"), pair("python run.py", "python run.py"));
    assert_eq!(named("ls && cat x"), None);
}

proptest::proptest! {
    #[test]
    fn any_command_line_is_read(line in "(cd|cat|sed|-n|-i|'1,2p'|head|-3|\\||&&|;|bash|-c|>|x| |\\PC)*") {
        act(&line);
        family(&line);
    }
}
