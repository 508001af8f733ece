//! A long session after a restart.

use std::time::{Duration, Instant};

use serde_json::json;

use super::daemon::{Daemon, message, real};

#[test]
fn a_long_session_answers_soon_after_a_restart_and_reads_nothing_twice() {
    let Some(model) = real("smollm2-135m-instruct") else { return };
    let dir = tempfile::tempdir().unwrap();
    let args = ["--budget", "1024", "--buffer", "128"];
    let (daemon, mut client) = Daemon::start(dir.path(), &model, &args);
    client.call("session/open", json!({"session": "s"}));
    let request = |n_words, seed| {
        json!({
            "session": "s",
            "messages": [message("user", n_words, seed)],
            "max_tokens": 16,
        })
    };
    let mut read = 0;
    for seed in 0.. {
        let answer = client.call("session/generate", request(700, seed));
        // The last token of an answer is chosen and not read.
        let usage = &answer["usage"];
        read = usage["prompt_tokens"].as_u64().unwrap()
            + usage["completion_tokens"].as_u64().unwrap()
            - 1;
        if read > 6_000 {
            break;
        }
    }
    daemon.kill();
    let (daemon, mut client) = Daemon::start(dir.path(), &model, &args);
    // The model is loaded once any session is open.
    client.call("session/open", json!({"session": "another"}));
    let started = Instant::now();
    let opened = client.call("session/open", json!({"session": "s"}));
    let opened_in = started.elapsed();
    assert_eq!((&opened["resumed"], &opened["rebuilt"]), (&json!(true), &json!(false)));
    assert_eq!(opened["tokens"]["logical"], read);
    let mut last = request(3, 99);
    last["max_tokens"] = json!(1);
    let answer = client.call("session/generate", last);
    let took = started.elapsed();
    println!("{read} tokens: open {opened_in:?}, with the first token {took:?}");
    assert_eq!(answer["usage"]["cached_tokens"], read);
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt - read < 40, "{} tokens are read", prompt - read);
    assert!(took < Duration::from_secs(5), "{took:?}");
    daemon.kill();
}
