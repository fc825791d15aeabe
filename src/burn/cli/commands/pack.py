"""The command `burn pack`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict

from rich.console import Console

from burn.cli.parser import Parser
from burn.core.errors import UserError


def run(arguments: list[str], console: Console) -> str | None:
    parser = Parser(
        "pack CHECKPOINT OUT",
        "Write a binary checkpoint (stage 2) as one packed file, which burn-engine runs without\n"
        "torch. The file is run and compared with the network before it is renamed to OUT. With\n"
        "--head it predicts classes; burn evaluate linear --out DIR keeps the classifier that it\n"
        "trains in DIR. A run of burn finetune has its classifier with it.",
        "  burn evaluate linear runs/student --augment none --train labelled/train \\\n"
        "      --test labelled/test --out runs/linear\n"
        "  burn pack runs/student runs/student.bnn --head runs/linear\n"
        "  burn pack runs/student student.bnn\n"
        "  burn pack runs/supervised classes.bnn --head runs/supervised\n"
        "  burn pack runs/student student.bnn --results runs/student-evaluated",
    )
    parser.add_argument("checkpoint", type=str, help="run folder or checkpoint of burn's")
    parser.add_argument("out", type=str, help="file to write, .bnn")
    parser.add_optional(
        "head",
        str,
        "linear classifier: the folder or file that evaluate linear wrote, or a checkpoint or "
        "run of the same backbone with a classifier (default: that of a fine-tuned run)",
    )
    parser.add_optional(
        "results",
        str,
        "folder; the file's size, its agreement with the network and its milliseconds per "
        "image on one thread of this machine are added to the results.jsonl in it",
    )
    parser.add_switch("json", "print JSON instead of lines")
    options = parser.read(arguments)
    from burn.core.paths import expand
    from burn.core.results import append_results, require_appendable
    from burn.deploy.named import check_packing

    checkpoint, out = expand(options.checkpoint), expand(options.out)
    head = None if options.head is None else expand(options.head)
    check_packing(checkpoint, out, head)  # before torch is imported
    results_file = None if options.results is None else expand(options.results) / "results.jsonl"
    if results_file:
        require_appendable(results_file)
    from burn.deploy.pack import pack

    done = pack(checkpoint, out, head)
    speed: dict[str, float] = {}
    write_error: UserError | None = None
    if results_file:
        from burn.deploy.measured import pack_results

        results = pack_results(done, out, options.checkpoint)
        try:
            append_results(results_file, results)
        except UserError as error:
            write_error = error  # raised below, after the numbers are printed
        speed = {r.metric: r.value for r in results if r.metric == "milliseconds"}
    if options.json:
        print(json.dumps({**asdict(done), **speed, "out": options.out}))
        if write_error:
            raise write_error
        return None
    print(
        f"{done.bytes:,} bytes, {done.ratio:.1f} times less than the {done.float32_bytes:,} of its "
        "parameters in float32"
    )
    print(
        f"run and compared on {done.images} images: least cosine of the features {done.cosine:.6f}"
        + (f", same class for {done.same_class} of them" if done.classes else "")
    )
    if done.unrounded < min(done.cosine, 0.9999):
        print(
            "its gates' weights are rounded to 16 bits: cosine to the features of before "
            f"{done.unrounded:.6f}"
        )
    if results_file:
        added = "" if write_error else f", added to {results_file}"
        print(f"{speed['milliseconds']:.3f} ms an image here on one thread{added}")
    print(f"-> {options.out}")
    if write_error:
        raise write_error
    return f"burn-engine run {shlex.quote(options.out)} photo.jpg"
