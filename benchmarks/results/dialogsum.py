"""DialogSum: what a dialogue was about, and what is said next in it, learned from 500 dialogues."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import commands, data, machine, page
from benchmarks.results.commands import times
from benchmarks.results.page import Result

SEED = 0
COLUMNS = ("--source", "dialogue", "--target", "summary")
TUNED = ("--model", "minilm", "--heads", "6", "--ffn-dim", "768", "--dropout", "0.2", "--lr", "5e-4")
SMALL = ("--dim", "128", "--layers", "2", "--dropout", "0.3", "--vocab-size", "2000", "--lr", "1e-3")
SUMMARY = {"ROUGE-1": 1, "ROUGE-2": 1, "ROUGE-L": 1}
REPLY = {"perplexity": 1, "distinct-1": 3, "distinct-2": 3}


def run(source: Path, folder: Path, *, quick: bool) -> Result:
    data.dialogsum(source, folder)
    if quick:
        data.shorten(folder, 20)
    seed = ("--seed", f"{SEED}")
    summarize = ("summarize", "dev.jsonl", *COLUMNS, *TUNED, "--batch-tokens", "1500", "--epochs", "6", *seed)
    summary_trained = commands.train(*summarize, folder=folder, quick=quick, out="summary")
    summary = commands.evaluate("test.jsonl", folder=folder, out="summary")
    answer = ("reply", "dev.jsonl", "--dialogue", "dialogue", *SMALL, "--epochs", "12", *seed)
    reply_trained = commands.train(*answer, folder=folder, quick=quick, out="reply")
    reply = commands.evaluate("test.jsonl", folder=folder, out="reply")

    rouge = max(scores["ROUGE-L"] for scores in summary.baselines.values())
    perplexity = min(scores["perplexity"] for scores in reply.baselines.values() if "perplexity" in scores)
    return Result(
        name="dialogsum",
        title="summaries of dialogues, and replies",
        data=(
            "The 500 dialogues of the dev part are for training, the 500 of the test part for the test. A summary is "
            "compared with three human summaries, and the best score counts. Every turn except the first is also a "
            "reply to the turns before it. The summary model uses MiniLM as encoder; its decoder is trained from "
            "scratch, and writes MiniLM's subwords or copies those of the dialogue. The reply model is trained from "
            "scratch. 500 dialogues are too few to learn English: this shows only that attention to the dialogue is "
            "better than the trivial baselines."
        ),
        commands=(summary_trained.command, summary.ran.command, reply_trained.command, reply.ran.command),
        goals=(
            page.more_than("summaries, ROUGE-L", summary.scores["ROUGE-L"], rouge, 1),
            page.less_than("replies, perplexity", reply.scores["perplexity"], perplexity, 1),
        ),
        tables=(summary.table(SUMMARY, ours="headwise, summaries"), reply.table(REPLY, ours="headwise, replies")),
        about=machine.about(SEED),
        figures={
            "summaries": {"training": summary_trained.figures(), "test": summary.figures()},
            "replies": {"training": reply_trained.figures(), "test": reply.figures()},
        },
        notes=(
            times(summary_trained, summary, "Summaries"),
            times(reply_trained, reply, "Replies"),
        ),
    )
