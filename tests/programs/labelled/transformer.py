"""transformers: a small BERT with random weights under Trainer, with evaluation and checkpoints."""

import argparse
import os
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")

import switches  # noqa: E402
import torch  # noqa: E402
from accelerate import data_loader  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments  # noqa: E402


class Tokens(Dataset):
    """Sequences of random tokens."""

    def __init__(self, count, length):
        draw = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(5, 2000, (count, length), generator=draw)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": int(tokens.sum()) % 4}


class UntilTime(TrainerCallback):
    """Ends the training after some seconds."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= time.monotonic() > self.end
        return control


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--log", required=True)
    arguments = parser.parse_args()
    switches.begin()
    switches.training()
    switches.around_items(data_loader.DataLoaderShard, "__iter__", "input")
    switches.around(Trainer, "_save_checkpoint", "checkpoint")
    torch.manual_seed(0)
    torch.set_num_threads(2)
    shape = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    model = BertForSequenceClassification(BertConfig(vocab_size=2000, num_labels=4, max_position_embeddings=128, **shape))
    switches.module(model)
    with tempfile.TemporaryDirectory() as folder:
        how = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=16,
            max_steps=100_000,
            logging_steps=5,
            save_steps=20,
            save_total_limit=1,
            eval_strategy="steps",
            eval_steps=15,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        until = UntilTime(arguments.seconds)
        trainer = Trainer(model=model, args=how, train_dataset=Tokens(2048, 96), eval_dataset=Tokens(64, 96), callbacks=[until])
        trainer.train()
    switches.write(arguments.log)
    print("steps", trainer.state.global_step, flush=True)


if __name__ == "__main__":
    main()
