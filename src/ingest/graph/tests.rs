use proptest::prelude::*;

use super::{Graph, Id};
use crate::ingest::span::Kind;
use crate::ingest::structure::{self, Given, Structure};

fn read(path: &str, first_line: u32, text: &str) -> Structure {
    let first_line = Some(first_line);
    let given = Given { kind: Kind::FileView, path: Some(path), language: None, first_line };
    structure::read(text, &given).remove(0)
}

const SHOP: &str = "\
class Shop:
    def sell(self, item):
        return self.price(item)

    def price(self, item):
        return rate() * item.cost

    def close(self):
        pass
";

const RATES: &str = "\
def rate():
    return RATES.get(1)

def unused():
    pass
";

fn shop() -> Graph {
    let mut graph = Graph::default();
    graph.observe("src/shop.py", &read("src/shop.py", 1, SHOP));
    graph.observe("src/rates.py", &read("src/rates.py", 1, RATES));
    graph
}

fn at(graph: &Graph, path: &str, line: u32) -> Id {
    graph.at(path, line).unwrap()
}

#[test]
fn weight_spreads_over_calls_both_ways_and_grows_less() {
    let graph = shop();
    let price = at(&graph, "/home/me/src/shop.py", 6);
    let weights = graph.spread(&[(price, 1.0)]);
    let of = |path, line| weights.of(at(&graph, path, line));
    assert_eq!(of("src/shop.py", 5), 1.0);
    let (caller, callee) = (of("src/shop.py", 2), of("src/rates.py", 1));
    assert!(caller > 0.0 && caller < 1.0);
    assert!(callee > 0.0 && callee < 1.0);
    assert_eq!(of("src/shop.py", 9), 0.0);
    assert_eq!(of("src/rates.py", 5), 0.0);
}

#[test]
fn a_method_is_meant_before_a_function_of_its_name() {
    let mut graph = shop();
    graph.observe("b.py", &read("b.py", 1, "def price():\n    pass\n\n"));
    let weights = graph.spread(&[(at(&graph, "src/shop.py", 2), 1.0)]);
    assert!(weights.of(at(&graph, "src/shop.py", 5)) > 0.0);
    assert_eq!(weights.of(at(&graph, "b.py", 1)), 0.0);
}

#[test]
fn a_later_view_replaces_what_a_function_calls() {
    let mut graph = shop();
    let edited =
        "    def price(self, item):\n        return 1\n\n    def close(self):\n        pass\n";
    let structure = read("src/shop.py", 5, &format!("class Shop:\n{edited}"));
    graph.observe("src/shop.py", &structure);
    let weights = graph.spread(&[(at(&graph, "src/rates.py", 1), 1.0)]);
    let weighed = graph.weigh("src/shop.py", &structure, &weights);
    assert_eq!(weighed, []);
}

#[test]
fn calls_of_a_fragment_belong_to_the_function_known_around_it() {
    let mut graph = shop();
    graph.observe("src/shop.py", &read("src/shop.py", 9, "        unused()\n"));
    let weights = graph.spread(&[(at(&graph, "src/rates.py", 4), 1.0)]);
    assert!(weights.of(at(&graph, "src/shop.py", 8)) > 0.0);
}

#[test]
fn words_of_a_task_name_definitions() {
    let mut graph = shop();
    let structure = read("a.rs", 1, "fn parse_header() {}\nstruct HeaderMap;\nfn word() {}\n");
    graph.observe("a.rs", &structure);
    let found = graph.mentioned("`HeaderMap` breaks in parse_header; a word about unused price");
    let mut ids = vec![at(&graph, "a.rs", 1), at(&graph, "a.rs", 2)];
    ids.sort();
    let mut found = found;
    found.sort();
    assert_eq!(found, ids);
}

#[test]
fn a_view_is_weighed_by_its_functions() {
    let graph = shop();
    let weights = graph.spread(&[(at(&graph, "src/rates.py", 1), 1.0)]);
    let weighed = graph.weigh("src/shop.py", &read("src/shop.py", 1, SHOP), &weights);
    let text: Vec<_> =
        weighed.iter().map(|(bytes, _)| SHOP[bytes.clone()].lines().next()).collect();
    assert_eq!(text, [Some("def sell(self, item):"), Some("def price(self, item):")]);
    assert!(weighed[0].1 < weighed[1].1);
}

proptest! {
    #[test]
    fn weights_are_shares_whatever_is_seen(
        calls in prop::collection::vec((0..8_u8, 0..8_u8), 0..20),
        seeds in prop::collection::vec((0..12_usize, 0.0..2.0_f32), 0..4),
    ) {
        let mut graph = Graph::default();
        for (index, (from, to)) in calls.iter().enumerate() {
            let path = format!("f{}.py", index % 3);
            let text = format!("def name_{from}():\n    name_{to}()\n\nx = 1\n");
            graph.observe(&path, &read(&path, 1, &text));
        }
        let seeds: Vec<_> = seeds.into_iter().map(|(id, weight)| (Id(id), weight)).collect();
        let weights = graph.spread(&seeds);
        for id in 0..40 {
            prop_assert!((0.0..=1.0).contains(&weights.of(Id(id))));
        }
    }
}
