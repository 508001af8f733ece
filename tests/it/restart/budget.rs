//! A recorded run never takes more than its budget.

use std::process::Command;

use serde_json::Value;

use super::daemon::real;

#[track_caller]
fn assert_bounded(model: &str, until_turn: &str) {
    let Some(model) = real(model) else { return };
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/trajectories/tally.json");
    let output = Command::new(env!("CARGO_BIN_EXE_attar"))
        .args(["replay", file, "--json", "--policy", "rkv", "--budget", "1024"])
        .args(["--model", &model, "--until-turn", until_turn])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let turns: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let number = |turn: &Value, name: &str| turn.pointer(name).unwrap().as_u64().unwrap();
    let full = turns.iter().find(|turn| number(turn, "/compactions") > 0).expect("a compaction");
    for turn in &turns {
        assert!(number(turn, "/tokens/kept") <= 1024 + 128, "{turn}");
        assert!(number(turn, "/bytes") <= number(full, "/bytes"), "{turn}");
    }
    let last = turns.last().unwrap();
    assert!(number(last, "/tokens/logical") > 3 * 1024, "{last}");
}

#[test]
fn a_run_keeps_within_its_budget_at_every_turn() {
    assert_bounded("smollm2-135m-instruct", "18");
}
