//! `attar eval` on the tiny model.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::tiny;

fn eval(what: &str, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_attar"))
        .args(["eval", what, "--quick", "--model"])
        .arg(tiny::fixture())
        .args(options)
        .output()
        .unwrap()
}

fn succeed(what: &str, options: &[&str]) -> String {
    let output = eval(what, options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn lines(what: &str, options: &[&str]) -> Vec<Value> {
    let text = succeed(what, &[options, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn keys(line: &Value) -> Vec<&str> {
    line.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Long enough for the tiny model's vocabulary of bytes.
const LONG: [&str; 4] = ["--max-tokens", "12000", "--budgets", "512"];

#[test]
fn fidelity_of_the_full_cache_with_itself_is_perfect() {
    let options = [&LONG[..], &["--policies", "full,rkv,h2o,oracle,random"]].concat();
    let lines = lines("fidelity", &options);
    let rows: Vec<_> = lines.iter().filter(|line| line["what"] == "fidelity").collect();
    for row in &rows {
        let expected = [
            "what",
            "model",
            "trajectory",
            "policy",
            "budget",
            "folding",
            "scored",
            "tokens",
            "extra_nll",
            "kl",
            "top1",
        ];
        assert_eq!(keys(row), expected);
        assert_eq!((&row["budget"], &row["folding"]), (&512.into(), &"off".into()));
        assert!(row["tokens"].as_u64().unwrap() > 0, "{row}");
        let figures = ["extra_nll", "kl", "top1"].map(|name| row[name].as_f64().unwrap());
        match row["policy"].as_str().unwrap() {
            "full" => assert_eq!(figures, [0.0, 0.0, 1.0], "{row}"),
            _ => assert!(figures[1] > 0.0 && figures[2] < 1.0, "{row}"),
        }
    }
    for policy in ["full", "rkv", "h2o", "oracle", "random"] {
        for scored in ["assistant", "commands", "thoughts"] {
            let is_it = |row: &&&Value| row["policy"] == policy && row["scored"] == scored;
            assert_eq!(rows.iter().filter(is_it).count(), 1, "{policy} {scored}");
        }
    }
    let repetition = lines.iter().find(|line| line["what"] == "repetition").unwrap();
    assert_eq!(keys(repetition), ["what", "model", "trajectory", "scored", "tokens", "repeated"]);
}

#[test]
fn folding_is_a_column_of_its_own() {
    let options = [&LONG[..], &["--policies", "full,agent", "--folding", "off,on"]].concat();
    let lines = lines("fidelity", &options);
    let row = |policy: &str, folding: &str| {
        let is_it = |row: &&Value| {
            row["policy"] == policy && row["folding"] == folding && row["scored"] == "assistant"
        };
        lines.iter().find(is_it).unwrap_or_else(|| panic!("no row for {policy} {folding}"))
    };
    assert_eq!(row("full", "off")["kl"], 0.0);
    for policy in ["full", "agent"] {
        assert_eq!(row(policy, "on")["tokens"], row(policy, "off")["tokens"]);
    }
}

#[test]
fn a_measurement_goes_on_where_it_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.jsonl");
    let resume = ["--resume", path.to_str().unwrap()];
    let run = |policies: &str| {
        lines("fidelity", &[&LONG[..], &resume, &["--policies", policies]].concat())
    };
    let kept = || std::fs::read_to_string(&path).unwrap();
    let first = run("rkv");
    assert_eq!(kept().lines().count(), 1);
    let both = run("streaming,rkv");
    assert_eq!(kept().lines().count(), 2);
    let of_rkv = |lines: &[Value]| -> Vec<Value> {
        lines.iter().filter(|line| line["policy"] == "rkv").cloned().collect()
    };
    assert_eq!(of_rkv(&both), of_rkv(&first));
    let before = kept();
    assert_eq!(run("streaming,rkv"), both);
    assert_eq!(kept(), before);
}

#[test]
fn fidelity_prints_tables_and_draws_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("loss.svg");
    let options =
        ["--max-tokens", "12000", "--budgets", "512,10%", "--plot", plot.to_str().unwrap()];
    let text = succeed("fidelity", &options);
    assert!(text.contains("Budget 512, all assistant tokens:\n\n| policy | extra nats a token"));
    assert!(text.contains("Budget 10%, thoughts:"), "{text}");
    assert!(text.contains("\n| oracle | "), "{text}");
    let picture = std::fs::read_to_string(plot).unwrap();
    assert!(picture.starts_with("<svg ") && picture.contains(">rkv</text>"));
}

#[test]
fn what_cannot_be_measured_is_refused_first() {
    for (options, expected) in [
        (&["--policies", "lru"][..], "unknown policy `lru`"),
        (&["--budgets", "100"], "`100` is no budget"),
        (&["--max-tokens", "99999"], "the model's context is 32768"),
        (&["--trajectories", "nowhere"], "cannot read nowhere"),
        (&["--buffer", "0"], "`--buffer` is 0"),
    ] {
        let output = eval("fidelity", options);
        assert!(!output.status.success() && output.stdout.is_empty(), "{options:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{options:?}: {error}");
    }
}

#[test]
fn a_trajectory_that_fits_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = Path::new(folder.path()).join("short.json");
    std::fs::write(&file, r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#)
        .unwrap();
    let trajectories = folder.path().to_str().unwrap();
    let output = eval("fidelity", &["--json", "--trajectories", trajectories]);
    assert!(output.status.success());
    assert!(output.stdout.is_empty());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("short: its "), "{error}");
}

#[test]
fn recall_counts_only_what_the_full_cache_knows() {
    let options = [&LONG[..], &["--policies", "full,rkv"]].concat();
    let lines = lines("recall", &options);
    assert_eq!(lines.len(), 2);
    for line in &lines {
        let expected = [
            "what",
            "model",
            "trajectory",
            "policy",
            "budget",
            "folding",
            "probes",
            "right",
            "likelier_probes",
            "likelier",
        ];
        assert_eq!(keys(line), expected);
        assert_eq!(line["what"], "recall");
        let n = |name: &str| line[name].as_u64().unwrap();
        assert!(n("right") <= n("probes") && n("likelier") <= n("likelier_probes"), "{line}");
    }
    let text = succeed("recall", &[&LONG[..], &["--policies", "rkv"]].concat());
    assert!(text.contains("| policy | word for word | likelier than four others |"), "{text}");
}

fn problems(folder: &Path) -> String {
    let path = folder.join("problems.jsonl");
    let lines: String = (1..=3)
        .map(|i| format!("{{\"question\":\"{i} + {i}?\",\"answer\":{}}}\n", 2 * i))
        .collect();
    std::fs::write(&path, lines).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn reasoning_compares_each_policy_with_the_full_cache() {
    let folder = tempfile::tempdir().unwrap();
    let problems = problems(folder.path());
    let kept = folder.path().join("kept.jsonl");
    let options = [
        &problems,
        "--max-tokens",
        "12000",
        "--policies",
        "rkv,streaming",
        "--buffer",
        "16",
        "--new-tokens",
        "80",
        "--problems",
        "3",
        "--resume",
        kept.to_str().unwrap(),
    ];
    let first = lines("reasoning", &options);
    let policies: Vec<_> = first.iter().map(|line| line["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["full", "rkv", "streaming"]);
    for line in &first {
        let expected =
            ["what", "model", "policy", "budget", "problems", "solved", "tokens", "loops"];
        assert_eq!(keys(line), expected);
        assert_eq!((&line["problems"], &line["budget"]), (&3.into(), &512.into()), "{line}");
        assert!(line["tokens"].as_u64().unwrap() >= 3, "{line}");
    }
    assert_eq!(std::fs::read_to_string(&kept).unwrap().lines().count(), 9);
    assert_eq!(lines("reasoning", &options), first);
    assert_eq!(std::fs::read_to_string(&kept).unwrap().lines().count(), 9);
}

#[test]
fn a_line_that_is_no_problem_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.jsonl");
    std::fs::write(&path, "{\"question\":\"a\",\"answer\":\"many\"}\n").unwrap();
    let output = eval("reasoning", &[path.to_str().unwrap()]);
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("line 1 of ") && error.contains("`many` is not a number"), "{error}");
}
