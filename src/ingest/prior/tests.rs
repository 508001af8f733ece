use std::ops::Range;

use proptest::prelude::*;

use super::{Class, Evidence, classes, places, regions, token_priors};
use crate::ingest::span::Kind;
use crate::ingest::structure::{self, Given, Structure};

const VIEW: &str = "    10→def f(x):
    11→    # why
    12→    return g(x)  # because
    13→
    14→@cached
    15→def h():
    16→    def inner():
    17→        pass
    18→    return inner
";

fn read(text: &str) -> Vec<Structure> {
    let path = Some("src/a.py");
    structure::read(text, &Given { kind: Kind::FileView, path, language: None, first_line: None })
}

fn class_at(classes: &[(Range<usize>, Class)], byte: usize) -> Option<Class> {
    classes.iter().find(|(bytes, _)| bytes.contains(&byte)).map(|(_, class)| *class)
}

#[test]
fn classes_cover_whole_lines_and_the_comments_behind_them() {
    let classes = classes(&read(VIEW), &Evidence::default());
    let is = |part: &str, class| {
        assert_eq!(class_at(&classes, VIEW.find(part).unwrap()), Some(class), "{part}");
    };
    is("10→", Class::Signature);
    is("# why", Class::Comment);
    is("return g", Class::Return);
    is("# because", Class::Comment);
    is("13→", Class::Blank);
    is("@cached", Class::Signature);
    assert_eq!(classes.first().unwrap().0.start, 0);
    assert_eq!(classes.last().unwrap().0.end, VIEW.len());
}

#[test]
fn lines_that_the_work_points_to_are_worth_most() {
    let mut evidence = Evidence::default();
    evidence.read_log("Traceback\n  File \"/home/me/src/a.py\", line 12, in f\n");
    evidence.touch("./src/a.py", [17]);
    let found = classes(&read(VIEW), &evidence);
    assert_eq!(class_at(&found, VIEW.find("return g").unwrap()), Some(Class::Named));
    assert_eq!(class_at(&found, VIEW.find("# because").unwrap()), Some(Class::Named));
    assert_eq!(class_at(&found, VIEW.find("pass").unwrap()), Some(Class::Touched));
    let mut elsewhere = Evidence::default();
    elsewhere.touch("other/a.py", [17]);
    assert_eq!(classes(&read(VIEW), &elsewhere), classes(&read(VIEW), &Evidence::default()));
}

#[test]
fn a_diff_touches_the_lines_it_adds() {
    let mut evidence = Evidence::default();
    evidence.read_diff(
        "+++ b/src/a.py\n@@ -11,2 +11,3 @@\n     # why\n-    old()\n+    new()\n+    x = 1\n",
    );
    let touched: Vec<_> =
        (9..20).filter(|line| evidence.class(Some("src/a.py"), Some(*line)).is_some()).collect();
    assert_eq!(touched, [12, 13]);
}

#[test]
fn places_are_found_in_the_logs_of_many_tools() {
    let log = "  --> src/kernel/mod.rs:12:5\n\
        thread 'x' panicked at src/a.rs:3:\n\
        File \"/a b/c.py\", line 4, in <module>\n\
        tests/test_a.py:7: AssertionError\n\
        \tat org.example.Main.run(Main.java:8)\n\
        \t/go/src/x.go:9 +0x1d\n\
        at f (/app/x.js:10:3)\n\
        x.c:11:2: error: no\n\
        12:30:01 nothing.txt:5\n";
    let found: Vec<_> = places(log).collect();
    let expected = [
        ("src/kernel/mod.rs", 12),
        ("src/a.rs", 3),
        ("/a b/c.py", 4),
        ("tests/test_a.py", 7),
        ("Main.java", 8),
        ("/go/src/x.go", 9),
        ("/app/x.js", 10),
        ("x.c", 11),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_token_is_worth_the_mean_of_its_bytes() {
    let classes = [(0..4, Class::Signature), (4..8, Class::Blank), (10..12, Class::Call)];
    let priors = token_priors(&classes, &[(0, 4), (2, 6), (8, 10), (9, 11), (5, 5), (11, 40)]);
    let call = Class::Call.weight();
    let expected = [1.0, 0.0, 0.0, call / 2.0, 0.0, call / 29.0];
    for (prior, expected) in priors.iter().zip(expected) {
        assert!((prior - expected).abs() < 1e-6, "{priors:?}");
    }
}

#[test]
fn regions_are_functions_with_what_stands_above_them() {
    let found: Vec<_> = regions(&read(VIEW)).into_iter().map(|bytes| &VIEW[bytes]).collect();
    let second = VIEW.find("    14→").unwrap();
    assert_eq!(found, [&VIEW[..VIEW.find("    13→").unwrap()], &VIEW[second..]]);
}

#[test]
fn the_table_has_every_class_once_and_in_order() {
    assert!(Class::ALL.is_sorted());
    for (index, class) in Class::ALL.into_iter().enumerate() {
        assert_eq!(class as usize, index);
        assert!((-1.0..=1.0).contains(&class.weight()));
    }
}

proptest! {
    #[test]
    fn ranges_are_in_order_whatever_the_text(
        lines in prop::collection::vec("[ a-z(){}:=#\"'ä]{0,20}", 0..20),
        kind in prop::sample::select(vec![Kind::FileView, Kind::Diff, Kind::Search]),
    ) {
        let text = lines.join("\n");
        let given = Given { kind, path: Some("a.py"), language: None, first_line: Some(1) };
        let structures = structure::read(&text, &given);
        for ranges in [
            classes(&structures, &Evidence::default()).into_iter().map(|(bytes, _)| bytes).collect(),
            regions(&structures),
        ] {
            let mut end = 0;
            for bytes in ranges {
                prop_assert!(bytes.start >= end && bytes.end >= bytes.start);
                prop_assert!(text.get(bytes.clone()).is_some());
                end = bytes.end;
            }
        }
    }
}
