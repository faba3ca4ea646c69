"""scripts.export: a checkpoint becomes files for another program."""

from exports import tokenizer_of, trained

from nanochat.checkpoint import RECORD, Saver
from nanochat.models import describe_config
from scripts.export import Config, main


def test_the_script_exports_a_checkpoint(tmp_path, monkeypatch, capsys):
    tokenizer = tokenizer_of()
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    tokenizer.save(tmp_path / "tok_train/default/tokenizer.json")
    model = trained("portable", tokenizer)
    record = dict.fromkeys(RECORD) | {"dtype": "fp32", "stage": "chat_sft", "model": describe_config(model.config)}
    record["tokenizer"] = {"tag": "default", "hash": tokenizer.content_hash}
    with Saver(tmp_path / "chat_sft/mine") as saver:
        saver.save(4, model.state_dict(), [], record)
    main(Config(tag="mine"))
    output = capsys.readouterr().out
    assert output.endswith(f"export: {tmp_path / 'export/mine-sft-hf'}\n")
    assert "the same ids for 5,000 texts" in output
    main(Config(format="tokenizer", tag="mine", out=str(tmp_path / "words")))
    assert {path.name for path in (tmp_path / "words").iterdir()} >= {"tokenizer.json", "tokenizer_config.json"}
