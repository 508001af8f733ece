//! Results as Markdown.

use std::fmt::{self, Display, Write};

use super::fidelity::Scored;
use super::metrics::bootstrap;
use super::recall::Asked;
use super::rows::{Figure, Measured, Pooled, ReasoningRow, Recalled, named};

impl Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.low.is_finite() && self.high.is_finite() {
            true => write!(f, "{:.3} [{:.3}, {:.3}]", self.mean, self.low, self.high),
            false => write!(f, "{:.3}", self.mean),
        }
    }
}

/// Writes a table; the first column is text, the others are numbers.
pub fn markdown(heads: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = heads.iter().enumerate().map(|(i, _)| if i == 0 { " --- |" } else { " ---: |" });
    let rule: String = std::iter::once("|").chain(rule).collect();
    line(heads) + &rule + "\n" + &rows.iter().map(|row| line(row)).collect::<String>()
}

/// Tables of all that was measured: one a budget and kind of tokens, policies ordered by their
/// loss, each beside `rkv` where that was measured too; then each trajectory by itself.
pub fn fidelity(measured: &[Measured]) -> String {
    let mut text = String::new();
    let all = Pooled::all(measured);
    let mut budgets: Vec<_> = all.iter().map(|pooled| pooled.budget).collect();
    budgets.sort_unstable();
    budgets.dedup();
    for budget in budgets {
        for scored in Scored::ALL {
            let name = match scored {
                Scored::Assistant => "all assistant tokens",
                Scored::Commands => "commands and tool calls",
                Scored::Thoughts => "thoughts",
            };
            let of_budget = all.iter().filter(|p| p.budget == budget && p.tokens(scored) > 0);
            let mut policies: Vec<_> =
                of_budget.map(|p| (p.figure(scored, |s| s.extra_nll), p)).collect();
            policies.sort_by(|(a, _), (b, _)| a.mean.total_cmp(&b.mean));
            if policies.is_empty() {
                continue;
            }
            let _ = writeln!(text, "Budget {budget}, {name}:\n");
            text += &pooled(scored, &policies);
            text.push('\n');
        }
        let _ = writeln!(text, "Budget {budget}, extra nats a token by trajectory:\n");
        text += &by_trajectory(&all.iter().filter(|p| p.budget == budget).collect::<Vec<_>>());
        text.push('\n');
    }
    text
}

/// A table for each budget: shares over all trajectories, then word for word by kind of fact.
pub fn recall(recalled: &[Recalled]) -> String {
    let mut budgets: Vec<_> = recalled.iter().map(|one| one.unit.budget).collect();
    budgets.sort_unstable();
    budgets.dedup();
    let mut text = String::new();
    for budget in budgets {
        let of_budget = || recalled.iter().filter(|one| one.unit.budget == budget);
        let name = |one: &Recalled| named(&one.unit.policy, one.unit.folding);
        let mut policies: Vec<String> = Vec::new();
        for one in of_budget() {
            if !policies.contains(&name(one)) {
                policies.push(name(one));
            }
        }
        let mut facts: Vec<_> = of_budget().flat_map(|one| &one.asked).map(|a| a.fact).collect();
        facts.sort_unstable();
        facts.dedup();
        let heads = ["policy", "word for word", "likelier than four others"].map(str::to_owned);
        let kinds = facts.iter().map(|fact| format!("{fact:?}").to_lowercase());
        let heads: Vec<_> = heads.into_iter().chain(kinds).collect();
        let row = |policy: &String| {
            let own = of_budget().filter(|one| name(one) == *policy);
            let asked: Vec<&Asked> = own.flat_map(|one| &one.asked).collect();
            let right = |asked: &Asked| asked.full.is_right.then_some(asked.own.is_right);
            let likelier = |asked: &Asked| asked.full.is_likelier.then_some(asked.own.is_likelier);
            let mut row = vec![policy.clone(), share(&asked, right), share(&asked, likelier)];
            row.extend(facts.iter().map(|fact| {
                let of_kind = asked.iter().filter(|asked| asked.fact == *fact);
                let of_kind: Vec<_> = of_kind.filter_map(|asked| right(asked)).collect();
                format!("{} of {}", of_kind.iter().filter(|is| **is).count(), of_kind.len())
            }));
            row
        };
        let rows: Vec<_> = policies.iter().map(row).collect();
        let _ = writeln!(text, "Budget {budget}:\n\n{}", markdown(&heads, &rows));
    }
    text
}

/// Shares of solved problems; the first row is the reference.
pub fn reasoning(rows: &[ReasoningRow]) -> String {
    let heads = ["policy", "solved", "share", "behind full", "tokens an answer", "loops"];
    let row = |row: &ReasoningRow| {
        vec![
            row.policy.clone(),
            format!("{} of {}", row.solved, row.problems),
            row.share.to_string(),
            row.behind.to_string(),
            format!("{:.0}", row.tokens as f64 / row.problems.max(1) as f64),
            row.loops.to_string(),
        ]
    };
    markdown(&heads.map(str::to_owned), &rows.iter().map(row).collect::<Vec<_>>())
}

/// The share of those that count, with its interval.
fn share(asked: &[&Asked], score: impl Fn(&Asked) -> Option<bool>) -> String {
    let scores: Vec<f64> =
        asked.iter().filter_map(|asked| score(asked)).map(|is| f64::from(u8::from(is))).collect();
    let mean =
        |sample: &[usize]| sample.iter().map(|&i| scores[i]).sum::<f64>() / sample.len() as f64;
    if scores.is_empty() {
        return "–".to_owned();
    }
    let all: Vec<_> = (0..scores.len()).collect();
    let [low, high] = bootstrap(scores.len(), 0, mean);
    format!("{} of {}", Figure { mean: mean(&all), low, high }, scores.len())
}

fn pooled(scored: Scored, policies: &[(Figure, &Pooled<'_>)]) -> String {
    let rkv = policies.iter().find(|(_, pooled)| pooled.name() == "rkv");
    let mut heads =
        ["policy", "extra nats a token", "KL", "top-1", "tokens"].map(str::to_owned).to_vec();
    if rkv.is_some() {
        heads.insert(2, "loss beside rkv's".to_owned());
    }
    let row = |(loss, policy): &(Figure, &Pooled<'_>)| {
        let mut row = vec![
            policy.name(),
            loss.to_string(),
            policy.figure(scored, |s| s.kl).to_string(),
            policy.figure(scored, |s| s.agreed as f64).to_string(),
            policy.tokens(scored).to_string(),
        ];
        if let Some((of_rkv, rkv)) = rkv {
            // A loss that may be none is no measure for others.
            let ratio = policy.ratio(rkv, scored).filter(|_| of_rkv.low > 0.0);
            row.insert(2, ratio.map_or_else(|| "–".to_owned(), |ratio| ratio.to_string()));
        }
        row
    };
    markdown(&heads, &policies.iter().map(row).collect::<Vec<_>>())
}

fn by_trajectory(policies: &[&Pooled<'_>]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for one in policies.iter().flat_map(|policy| &policy.trajectories) {
        if !names.contains(&&*one.unit.trajectory) {
            names.push(&one.unit.trajectory);
        }
    }
    let heads: Vec<_> =
        std::iter::once("policy").chain(names.iter().copied()).map(str::to_owned).collect();
    let row = |policy: &&Pooled<'_>| -> Vec<String> {
        let of = |name: &&str| {
            let one = policy.trajectories.iter().find(|one| one.unit.trajectory == **name);
            let row = one.and_then(|one| one.rows().next());
            row.map_or_else(|| "–".to_owned(), |row| format!("{:.3}", row.extra_nll))
        };
        std::iter::once(policy.name()).chain(names.iter().map(of)).collect()
    };
    markdown(&heads, &policies.iter().map(row).collect::<Vec<_>>())
}
