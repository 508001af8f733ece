//! The daemon is killed again and again, at moments that nobody chose.

use std::path::Path;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::daemon::{Client, Daemon, generated, message, real, store, tiny};

const ARGS: [&str; 4] = ["--budget", "256", "--buffer", "64"];
const N_KILLS: usize = 50;
/// A session of so many steps comes to somewhat under 2,000 tokens of the real model.
const N_STEPS: usize = 12;

/// What a client asks for, and what it gets where nothing goes wrong.
struct Step {
    method: &'static str,
    params: Value,
    /// Messages of the session once it is done.
    history: Vec<Value>,
    took: Duration,
}

/// Runs a whole session without any interruption.
fn reference(client: &mut Client, session: &str, seed: u64) -> Vec<Step> {
    client.call("session/open", json!({"session": session}));
    let mut steps: Vec<Step> = Vec::new();
    for step_idx in 0..N_STEPS as u64 {
        let seed = 100 * seed + step_idx;
        let given = message(if step_idx % 4 < 2 { "user" } else { "tool" }, 60, seed);
        let mut params = json!({"session": session, "messages": [given]});
        let method = if step_idx % 2 == 0 { "session/append" } else { "session/generate" };
        if method == "session/generate" {
            params["max_tokens"] = json!(100);
            params["sampling"] = json!({"temperature": 0.7, "seed": seed});
        }
        let started = Instant::now();
        let answer = client.call(method, params.clone());
        let took = started.elapsed();
        let mut history = steps.last().map_or_else(Vec::new, |step| step.history.clone());
        history.push(given);
        history.extend(answer.get("message").cloned());
        steps.push(Step { method, params, history, took });
    }
    steps
}

/// A client that goes on with its session whatever becomes of the daemon.
struct Survivor<'a> {
    dir: &'a Path,
    model: &'a str,
    session: String,
    steps: &'a [Step],
    n_done: usize,
    /// A turn was stored and not answered: its text comes first, and the kill may have come before
    /// its cache. So it is until the next answer.
    may_lack_cache: bool,
    n_kills: usize,
    n_partials: usize,
    rng: ChaCha8Rng,
}

impl Survivor<'_> {
    fn run(&mut self) {
        while self.n_done < self.steps.len() {
            let (daemon, mut client) = self.start();
            self.resume(&mut client);
            self.work(&mut client);
            daemon.kill();
            self.n_kills += 1;
        }
    }

    /// Starts the daemon, at times after one that was killed while it started.
    fn start(&mut self) -> (Daemon, Client) {
        if self.rng.random_bool(0.2) {
            let mut daemon = Daemon::launch(self.dir, self.model, &ARGS);
            if self.rng.random_bool(0.5) {
                // Then in the middle of opening the session.
                let mut client = daemon.client();
                client.send("session/open", &json!({"session": self.session})).unwrap();
                let moment = self.rng.random_range(0..60_000);
                client.answer_within(Duration::from_micros(moment));
            }
            daemon.kill();
            self.n_kills += 1;
        }
        Daemon::start(self.dir, self.model, &ARGS)
    }

    /// Opens the session and holds what it has against what was answered.
    fn resume(&mut self, client: &mut Client) {
        let opened = client.call("session/open", json!({"session": self.session}));
        let shown = client.call("session/show", json!({"session": self.session}));
        let history = shown["history"].as_array().unwrap();
        let expected = |n_done: usize| match n_done {
            0 => &[][..],
            n_done => &self.steps[n_done - 1].history,
        };
        // The step that was under way is there as a whole or not at all.
        if self.n_done < self.steps.len() && history.len() > expected(self.n_done).len() {
            self.n_done += 1;
            self.may_lack_cache = true;
        }
        let is_rebuilt = opened["rebuilt"].as_bool().unwrap();
        assert!(!is_rebuilt || self.may_lack_cache, "no kill costs an answered turn's cache");
        assert_eq!(texts(history), texts(expected(self.n_done)));
        let Some(partial) = opened.get("partial") else { return };
        self.n_partials += 1;
        let step = &self.steps[self.n_done];
        assert_eq!(step.method, "session/generate");
        assert_eq!(partial["messages"], step.params["messages"]);
        let whole = step.history.last().unwrap()["content"].as_str().unwrap();
        let text = partial["text"].as_str().unwrap();
        assert!(whole.starts_with(text), "{text:?} does not begin {whole:?}");
    }

    /// Works until the daemon is to be killed.
    fn work(&mut self, client: &mut Client) {
        while let Some(step) = self.steps.get(self.n_done) {
            let moment = step.took.mul_f64(self.rng.random_range(0.0..3.0));
            client.send(step.method, &step.params).unwrap();
            let Some(answer) = client.answer_within(moment) else { return };
            let answer = answer.unwrap();
            if let Some(message) = answer.get("message") {
                assert_eq!(message["content"], step.history.last().unwrap()["content"]);
                self.may_lack_cache = false;
            }
            self.n_done += 1;
            // Right after an answer is a moment like any other.
            if self.rng.random_bool(0.3) {
                return;
            }
        }
    }
}

/// Messages without the ids of tool calls, which are new each time.
fn texts(messages: &[Value]) -> Vec<(&Value, &Value)> {
    messages.iter().map(|message| (&message["role"], &message["content"])).collect()
}

#[test]
fn no_kill_loses_an_answered_turn_or_changes_what_comes_next() {
    let model = real("smollm2-135m-instruct").unwrap_or_else(tiny);
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [undisturbed, disturbed] = dirs.each_ref().map(|dir| dir.path());
    let (reference_daemon, mut client) = Daemon::start(undisturbed, &model, &ARGS);
    let (mut n_kills, mut n_partials) = (0, 0);
    let mut sessions = Vec::new();
    while n_kills < N_KILLS {
        let number = sessions.len() as u64;
        let session = format!("session-{number}");
        let steps = reference(&mut client, &session, number);
        let mut survivor = Survivor {
            dir: disturbed,
            model: &model,
            session: session.clone(),
            steps: &steps,
            n_done: 0,
            may_lack_cache: false,
            n_kills: 0,
            n_partials: 0,
            rng: ChaCha8Rng::seed_from_u64(number),
        };
        survivor.run();
        n_kills += survivor.n_kills;
        n_partials += survivor.n_partials;
        sessions.push(session);
    }
    reference_daemon.kill();
    println!("{n_kills} kills in {} sessions, {n_partials} partial turns", sessions.len());
    let [undisturbed, disturbed] = [undisturbed, disturbed].map(store);
    for session in &sessions {
        let tokens = generated(&undisturbed, session);
        assert_eq!(tokens.len(), N_STEPS / 2);
        assert_eq!(generated(&disturbed, session), tokens, "{session}");
    }
}
