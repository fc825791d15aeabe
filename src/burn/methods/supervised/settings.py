"""What is known of the supervised baselines, which have no settings, before torch is imported."""

from burn.methods.entries import MethodEntry, add_method

_MODULE = "burn.methods.supervised.method"

add_method(MethodEntry("supervised", f"{_MODULE}:Supervised", needs=frozenset({"labels"})))
add_method(
    MethodEntry(
        "supervised_kl",
        f"{_MODULE}:SupervisedKl",
        needs=frozenset({"classifier"}),
        title="supervised, KL",
    )
)
