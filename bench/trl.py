"""Whether what is exported for training loads in TRL, and a model learns from it.

Run with `make bench-trl`. A conversation is led and exported, then a tiny model of random weights
takes five steps of supervised fine-tuning on it, on the CPU, in an environment of its own below the
user's cache (1.5 GB, made once: torch of exactly this version first, since others bring CUDA).
Fails unless the loss falls and what is learned from is the assistant's tokens alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hermes_nb import Hermes
from hermes_nb.extras.training.trajectories import line, trajectory_of
from hermes_nb.models.scripted import ScriptedModel, call

STEPS = 5
ROWS = 8
PINS = (("torch==2.13.0",), ("trl==1.16.0", "transformers==5.23.0", "datasets==5.2.0"))
TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}
{%- for message in messages %}<s>{{ message.role }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}
{%- for each in message.tool_calls or [] %}<call>{{ each.function | tojson }}</call>{% endfor %}</s>
{%- endgeneration %}{% else %}{{ message.content }}</s>{% endif %}
{% endfor %}"""
TRAIN = """
import sys
from datasets import load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

path, folder, template, steps = sys.argv[1:]
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(letters)}, merges=[]))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
tokens = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="<pad>")
tokens.chat_template = template
shape = Qwen2Config(
    vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8192,
    eos_token_id=tokens.eos_token_id, pad_token_id=tokens.pad_token_id,
)
rows = load_dataset("json", data_files=path, split="train", cache_dir=folder + "/cache")
settings = SFTConfig(
    output_dir=folder, max_steps=int(steps), per_device_train_batch_size=2, learning_rate=1e-2,
    logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False,
    assistant_only_loss=True, max_length=8192, disable_tqdm=True,
)
trainer = SFTTrainer(
    model=Qwen2ForCausalLM(shape), processing_class=tokens, train_dataset=rows, args=settings
)
batch = next(iter(trainer.get_train_dataloader()))
learned = tokens.decode(batch["labels"][0][batch["labels"][0] != -100])
trainer.train()
losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
print("learned from:", repr(learned))
print("losses:", *(f"{float(each):.3f}" for each in losses))
assert len(losses) == int(steps) and float(losses[-1]) < float(losses[0])
assert "There are three." in learned and "read_file" in learned
assert "How many" not in learned and "row one" not in learned
"""


def environment() -> str:
    """Return the Python that has TRL; make its environment where there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "hermes_nb" / "systems" / "trl"
    python, ready = str(folder / "bin" / "python"), folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        for pins in PINS:
            subprocess.run([python, "-m", "pip", "install", "-q", *pins], check=True)
        ready.touch()
    return python


def main() -> int:
    """Lead, export, train; return what the training returned."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.txt").write_text("row one\nrow two\nrow three\n")
        script = [call("read_file", path="a.txt"), "There are three."]
        with Hermes(ScriptedModel(script), home=folder / "home", cwd=folder) as hermes:
            hermes.ask("How many rows has a.txt?")
            session = hermes._opening.session()
            stored = session.store.get(session.id)
            assert stored is not None
            found = trajectory_of(stored, session.store.rows(session.id), hermes.tools)
        data = folder / "data.jsonl"
        data.write_text((line(found, "chat") + "\n") * ROWS, "utf-8")
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": name, "CUDA_VISIBLE_DEVICES": ""}
        command = [environment(), "-c", TRAIN, str(data), name, TEMPLATE, str(STEPS)]
        return subprocess.run(command, env=os.environ | offline, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
