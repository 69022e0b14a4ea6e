"""Bar 4, the part that needs a real training run: how many fresh captures reach their root and merge."""

import profilers
from targets import program, torch_python


def measure(table, folder, quick):
    """Bar 4. That the frames are the right ones is tested against gdb, pystack and py-spy by `cargo test`."""
    table.heading("4. Stacks of a training run (CNN with oneDNN, DataLoader workers, two OpenMP threads)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("rooted and merged", missing)
        return
    tool = profilers.TorchSpy(folder)
    seconds = 6 if quick else 60
    with tool.launch([python, program("train_cnn.py"), "--seconds", str(seconds)]) as run:
        run.wait(seconds + 180)
    quality = tool.report(run.recording)["quality"]
    fresh = quality["fresh"]
    table.at_least(f"rooted share of {fresh} fresh captures", quality["rooted_share"], 0.995, "{:.4f}")
    table.at_least(f"merged share of {fresh} fresh captures", quality["merged_share"], 0.995, "{:.4f}")
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(quality["partial"].items()) if count)
    print(f"    partial: {reasons or 'none'}", flush=True)
    table.stated("fresh captures with a guessed frame", f"{100 * quality['guessed_stacks']:.2f} %")
