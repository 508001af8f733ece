//! Quality against budget as an SVG picture, readable on light and on dark pages.

use std::fmt::Write;

use super::budget::Asked;
use super::fidelity::Scored;
use super::rows::{Measured, Pooled};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;

/// Least distance of two labels, in units of the picture.
const LINE: f64 = 15.0;

/// Colours that are told apart by people with any colour vision and stand out from white and from
/// black (after Okabe and Ito, 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#808080"];

/// Dashes tell apart what shares a colour.
const DASHES: [&str; 3] = ["", "6 3", "2 3"];

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}\
    .axis{stroke:#888;fill:none}.grid{stroke:#8884;fill:none}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}}";

/// One policy: its budgets in slots (or percent) and its loss under each.
struct Line {
    policy: String,
    points: Vec<(f64, f64)>,
}

/// Draws the extra nats a token of all assistant tokens, over all trajectories, against the
/// budget. Budgets that are shares are drawn where there are no others.
pub fn svg(measured: &[Measured], title: &str) -> String {
    let all = Pooled::all(measured);
    let has_slots = all.iter().any(|pooled| matches!(pooled.budget, Asked::Slots(_)));
    let mut lines: Vec<Line> = Vec::new();
    for pooled in &all {
        let budget = match (pooled.budget, has_slots) {
            (Asked::Slots(n), true) | (Asked::Percent(n), false) => n as f64,
            _ => continue,
        };
        let figure = pooled.figure(Scored::Assistant, |sums| sums.extra_nll);
        let point = (budget, figure.mean);
        match lines.iter_mut().find(|line| line.policy == pooled.name()) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { policy: pooled.name(), points: vec![point] }),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    draw(&lines, title, if has_slots { "budget in slots" } else { "budget in percent" })
}

fn draw(lines: &[Line], title: &str, unit: &str) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut budgets: Vec<f64> = points().map(|(budget, _)| *budget).collect();
    budgets.sort_by(f64::total_cmp);
    budgets.dedup();
    let highest = points().map(|(_, loss)| *loss).fold(0.0, f64::max);
    let lowest = points().map(|(_, loss)| *loss).fold(0.0, f64::min);
    let step = tick(highest - lowest);
    let (bottom, top) = ((lowest / step).floor() * step, (highest / step).ceil() * step);
    let (first, last) = (budgets.first().copied().unwrap_or(1.0), budgets.last().copied());
    let span = (last.unwrap_or(1.0) / first).log2();
    let x = |budget: f64| {
        let share = if span > 0.0 { (budget / first).log2() / span } else { 0.5 };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let y = |loss: f64| {
        let share = (loss - bottom) / (top - bottom).max(step);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    };

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
         <title>{0}</title><style>{STYLE}</style>\n<text x=\"{LEFT}\" y=\"20\">{0}</text>\n",
        escaped(title)
    );
    // Writing to a string does not fail.
    for i in 0..=((top - bottom) / step).round() as usize {
        let loss = bottom + i as f64 * step;
        let (at, from, to) = (y(loss), LEFT - 6.0, WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{to}\"/>\
             <text x=\"{from}\" y=\"{at:.1}\" text-anchor=\"end\" dy=\".35em\">{loss:.2}</text>"
        );
    }
    let floor = HEIGHT - BOTTOM;
    for budget in &budgets {
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{at:.1} {floor}v5\"/>\
             <text x=\"{at:.1}\" y=\"{0}\" text-anchor=\"middle\">{budget}</text>",
            floor + 18.0,
            at = x(*budget)
        );
    }
    let _ = writeln!(
        svg,
        "<path class=\"axis\" d=\"M{LEFT} {TOP}V{floor}H{}\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{unit} (extra nats a token, lower is \
         better)</text>",
        WIDTH - RIGHT,
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0
    );

    let ends: Vec<f64> =
        lines.iter().map(|line| line.points.last().map_or(floor, |(_, loss)| y(*loss))).collect();
    for ((i, line), label) in lines.iter().enumerate().zip(apart(&ends)) {
        let colour = COLOURS[i % COLOURS.len()];
        let dash = DASHES[i / COLOURS.len() % DASHES.len()];
        let place = |(budget, loss): &(f64, f64)| format!("{:.1} {:.1}", x(*budget), y(*loss));
        let path: Vec<_> = line.points.iter().map(place).collect();
        let _ = writeln!(
            svg,
            "<path d=\"M{}\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\" \
             fill=\"none\"/>",
            path.join("L")
        );
        for (budget, loss) in &line.points {
            let (x, y) = (x(*budget), y(*loss));
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let right = WIDTH - RIGHT;
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{:.1} {:.1}L{} {label:.1}\"/>\
             <text x=\"{}\" y=\"{label:.1}\" dy=\".35em\" style=\"fill:{colour}\">{}</text>",
            line.points.last().map_or(right, |(budget, _)| x(*budget)),
            ends[i],
            right + 10.0,
            right + 14.0,
            escaped(&line.policy)
        );
    }
    svg + "</svg>\n"
}

/// A round distance of marks, four to ten of which make up `span`.
fn tick(span: f64) -> f64 {
    if span <= 0.0 || !span.is_finite() {
        return 0.1;
    }
    let decade = 10f64.powf(span.log10().floor());
    [0.1, 0.2, 0.5]
        .map(|part| part * decade)
        .into_iter()
        .find(|step| span / step <= 10.0)
        .unwrap_or(decade)
}

/// Heights near those asked for that keep a line's distance from each other.
fn apart(heights: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by(|&a, &b| heights[a].total_cmp(&heights[b]));
    let mut placed = heights.to_vec();
    let mut least = f64::NEG_INFINITY;
    for &i in &order {
        placed[i] = heights[i].max(least);
        least = placed[i] + LINE;
    }
    // What was pushed out at the bottom pushes back.
    let mut most = HEIGHT - BOTTOM;
    for &i in order.iter().rev() {
        placed[i] = placed[i].min(most);
        most = placed[i] - LINE;
    }
    placed
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_a_line_with_its_name() {
        let line = |policy: &str, points: &[(f64, f64)]| Line {
            policy: policy.to_owned(),
            points: points.to_vec(),
        };
        let lines = [
            line("rkv", &[(256.0, 0.8), (1_024.0, 0.4), (4_096.0, 0.1)]),
            line("a<b", &[(1_024.0, 0.4)]),
        ];
        let svg = draw(&lines, "R & D", "slots");
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains(">rkv</text>") && svg.contains(">a&lt;b</text>"));
        assert!(svg.contains("R &amp; D") && !svg.contains("NaN"));
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }

    #[test]
    fn nothing_measured_is_an_empty_picture() {
        assert!(!svg(&[], "none").contains("NaN"));
    }

    #[test]
    fn labels_do_not_cover_each_other() {
        let mut placed = apart(&[300.0, 301.0, 302.0, 371.0, 372.0, 40.0]);
        placed.sort_by(f64::total_cmp);
        assert!(placed.windows(2).all(|pair| pair[1] - pair[0] > LINE - 1e-9), "{placed:?}");
        assert!(placed.iter().all(|at| *at <= HEIGHT - BOTTOM));
    }

    #[test]
    fn marks_stand_at_round_numbers() {
        for (span, step) in [(0.42, 0.05), (1.0, 0.1), (0.09, 0.01), (3.0, 0.5), (0.0, 0.1)] {
            assert!((tick(span) - step).abs() < 1e-9, "{span}: {}", tick(span));
        }
    }
}
