#!/usr/bin/env bash
# Attar beside llama.cpp on the same file, in turn, with medians of ratios.
#
#   LLAMACPP_BENCH=/path/to/llamacpp-bench benches/side_by_side.sh MODEL.gguf
#
# LLAMACPP_BENCH is the program that benches/llamacpp builds (see its Cargo.toml).
#
# Its threads spin while they wait, so on a machine that does other work too it looks slower than
# it is: the load is printed with the result. Set by variables: ATTAR (the program), ROUNDS (3),
# THREADS (2), PREFILL (512), DEPTHS (0,2048,7936), DECODE (32), SEQS (1), BUDGET (1024),
# POLICY (rkv). Of llama.cpp's two kinds of attention the faster one counts.
set -euo pipefail

model=${1:?usage: LLAMACPP_BENCH=PROGRAM $0 MODEL.gguf}
: "${LLAMACPP_BENCH:?is to name a llama.cpp bench program; the head of this script says which}"
attar=${ATTAR:-$(dirname "$0")/../target/release/attar}
rounds=${ROUNDS:-3} threads=${THREADS:-2} prefill=${PREFILL:-512} depths=${DEPTHS:-0,2048,7936}
decode=${DECODE:-32} seqs=${SEQS:-1} budget=${BUDGET:-1024} policy=${POLICY:-rkv}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
counts=(--threads "$threads" --prefill "$prefill" --depths "$depths" --decode "$decode" --seqs "$seqs")

for round in $(seq "$rounds"); do
    echo "round $round of $rounds, load $(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo unknown)" >&2
    for attention in on off; do
        "$LLAMACPP_BENCH" "$model" "${counts[@]}" --fa "$attention" >"$results/peer-$round-$attention"
    done
    "$attar" bench --model "$model" "${counts[@]}" --policy "$policy" --budget "$budget" --json \
        >"$results/attar-$round"
done

python3 - "$results" "$rounds" <<'PY'
import json, statistics, sys

folder, rounds = sys.argv[1], int(sys.argv[2])
ratios, rates = {}, {}

def lines(name):
    return [json.loads(line) for line in open(f"{folder}/{name}") if line.startswith("{")]

for round in range(1, rounds + 1):
    peer = {}
    for attention in ("on", "off"):
        for line in lines(f"peer-{round}-{attention}"):
            if line["what"] in ("prefill", "decode"):
                key = (line["what"], line.get("depth"), line.get("seqs"))
                peer[key] = max(peer.get(key, 0), line["tok_s"])
    for line in lines(f"attar-{round}"):
        key = (line["what"], line.get("depth"), line.get("seqs"))
        if key in peer:
            row = key + (line.get("policy", ""), line.get("budget", ""))
            ratios.setdefault(row, []).append(line["tok_s"] / peer[key])
            rates.setdefault(row, []).append((line["tok_s"], peer[key]))

print(f"{'what':<8} {'depth':>6} {'seqs':>4} {'policy':<8} {'budget':>6} {'attar':>8} {'llama.cpp':>9} {'ratio':>6}  range")
for row, found in ratios.items():
    what, depth, seqs, policy, budget = ("" if part is None else part for part in row)
    ours, theirs = (statistics.median(rate[i] for rate in rates[row]) for i in (0, 1))
    print(f"{what:<8} {depth:>6} {seqs:>4} {policy:<8} {budget:>6} {ours:>8.1f} {theirs:>9.1f} "
          f"{statistics.median(found):>6.2f}  {min(found):.2f} to {max(found):.2f}")
PY
