//! `attar bench` on the tiny model.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(options: &[&str]) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/model/tiny-qwen2.gguf");
    Command::new(env!("CARGO_BIN_EXE_attar"))
        .args(["bench", "--quick", "--model"])
        .arg(model)
        .args(options)
        .output()
        .unwrap()
}

fn lines(options: &[&str]) -> Vec<Value> {
    let output = bench(options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_figure_is_a_json_line() {
    let lines = lines(&["--json", "--budget", "256", "--depths", "0,2048", "--kv-memory", "64MiB"]);
    for (what, figure) in [
        ("prefill", "tok_s"),
        ("ingest", "mb_s"),
        ("decode", "tok_s"),
        ("compaction", "share"),
        ("first_token", "ms"),
        ("snapshot", "restore_ms"),
        ("capacity", "sessions"),
        ("memory", "weight_bytes"),
    ] {
        let found: Vec<_> = lines.iter().filter(|line| line["what"] == what).collect();
        assert!(!found.is_empty(), "no line says {what}");
        for line in found {
            assert!(line[figure].as_f64().unwrap() > 0.0, "{line}");
        }
    }
    let decode = lines.iter().filter(|line| line["what"] == "decode" && line["depth"] == 2_048);
    for line in decode {
        let kept = if line["policy"] == "full" { 2_048 } else { 256 };
        assert_eq!((&line["kept"], &line["synthetic"]), (&kept.into(), &true.into()), "{line}");
    }
}

#[test]
fn a_budget_lets_more_sessions_into_the_same_memory() {
    let lines = lines(&["--json", "--budget", "1638", "--depths", "0", "--kv-memory", "64MiB"]);
    let sessions = |policy: &str| {
        let line = lines.iter().find(|l| l["what"] == "capacity" && l["policy"] == policy);
        line.unwrap()["sessions"].as_u64().unwrap()
    };
    assert!(sessions("rkv") >= 9 * sessions("full"), "{lines:?}");
}

#[test]
fn a_depth_past_the_context_is_refused_before_anything_is_measured() {
    let output = bench(&["--depths", "40000"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: ") && error.contains("`--depths`"), "{error}");
}
