from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import stat
from pathlib import Path

import pytest
import safetensors
import torch

from tests.training.doubles import (
    assert_bitwise,
    gaussian,
    tiny_config,
    tiny_data,
    tiny_net,
    weights_of,
)
from whvi._files import seal, unseal
from whvi.errors import ConfigError, ModelFileError
from whvi.training import Checkpoints, fit
from whvi.training.checkpoint import CheckpointStore, open_store

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c/d": torch.zeros(0)}
METADATA = {"step": 3, "text": '"sha256":"' + "0" * 64 + '"', "list": [1.5, None]}


class TestSealed:
    def test_round_trip(self):
        tensors, metadata = unseal(seal(TENSORS, METADATA))
        assert metadata == METADATA
        assert tensors.keys() == TENSORS.keys()
        assert_bitwise([tensors[n] for n in TENSORS], list(TENSORS.values()))

    def test_any_safetensors_reader_opens_it(self, tmp_path):
        path = tmp_path / "x.safetensors"
        path.write_bytes(seal(TENSORS, METADATA))
        with safetensors.safe_open(path, "pt") as file:
            assert json.loads(file.metadata()["whvi"]) == METADATA
            assert torch.equal(file.get_tensor("a"), TENSORS["a"])

    def test_every_damaged_byte_is_refused(self):
        payload = seal(TENSORS, METADATA)
        for at in range(len(payload)):
            damaged = bytearray(payload)
            damaged[at] ^= 1 << (at % 8)
            with pytest.raises(ModelFileError):
                unseal(bytes(damaged))

    def test_truncated_extended_spliced_and_foreign_bytes_are_refused(self):
        payload = seal(TENSORS, METADATA)
        rng = random.Random(0)
        bad = [payload[: rng.randrange(len(payload))] for _ in range(100)]
        bad += [b"", b"\0" * 100, payload + b"\0", payload[100:], b"\xff" * 64, b"[" * 100_000]
        bad += [(9).to_bytes(8, "little") + b'{"a": 1}\n', (4).to_bytes(8, "little") + b"null"]
        for payload in bad:
            with pytest.raises(ModelFileError):
                unseal(payload)

    def test_nan_in_metadata_is_refused(self):
        with pytest.raises(ValueError, match="JSON"):
            seal(TENSORS, {"score": float("nan")})


class TestStore:
    def test_two_are_kept_and_the_newest_is_read(self, tmp_path):
        with open_store(tmp_path / "new" / "folder") as store:
            for step in (1, 2, 3):
                store.save(step, TENSORS, {"step": step})
            assert len(list(store.folder.glob("step-*"))) == 2
            assert store.load_latest()[1]["step"] == 3

    def test_a_damaged_one_is_passed_over_with_a_warning(self, tmp_path):
        with open_store(tmp_path) as store:
            store.save(1, TENSORS, {"step": 1})
            newest = store.save(2, TENSORS, {"step": 2})
            newest.write_bytes(newest.read_bytes()[:-1])
            with pytest.warns(UserWarning, match="passed over"):
                assert store.load_latest()[1]["step"] == 1

    def test_nothing_but_damage_is_an_error(self, tmp_path):
        with open_store(tmp_path) as store:
            store.save(1, TENSORS, {"step": 1}).write_bytes(b"")
            with (
                pytest.warns(UserWarning, match="passed over"),
                pytest.raises(ModelFileError, match="all 1 checkpoints"),
            ):
                store.load_latest()

    def test_an_empty_folder_has_none(self, tmp_path):
        with open_store(tmp_path) as store:
            assert store.load_latest() is None

    def test_half_written_files_are_cleared(self, tmp_path):
        (tmp_path / ".step-000000000007.safetensors.123.tmp").write_bytes(b"half")
        with open_store(tmp_path) as store:
            assert store.load_latest() is None
        assert [p.name for p in tmp_path.iterdir()] == ["lock"]

    def test_a_folder_in_use_is_refused_and_free_again_afterwards(self, tmp_path):
        refused = pytest.raises(ModelFileError, match=f"in use by process {os.getpid()}")
        with open_store(tmp_path), refused:
            open_store(tmp_path).__enter__()
        with open_store(tmp_path):
            pass

    def test_a_path_that_cannot_be_a_folder_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ModelFileError, match="cannot use"):
            open_store(tmp_path / "file" / "folder").__enter__()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_read_only_folder_is_refused(self, tmp_path):
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(ModelFileError, match="cannot use"):
            open_store(tmp_path).__enter__()

    def test_a_read_only_file_system_is_refused(self, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(ModelFileError, match="Read-only file system"):
            open_store(tmp_path).__enter__()

    def test_a_full_disk_leaves_the_previous_checkpoint(self, tmp_path):
        """The limit on file sizes makes the kernel refuse the write midway, as a full disk."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with open_store(tmp_path) as store:
            store.save(1, TENSORS, {"step": 1})
            resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
            try:
                with pytest.raises(ModelFileError, match=r"cannot write .* intact"):
                    store.save(2, {"big": torch.zeros(10_000)}, {"step": 2})
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                signal.signal(signal.SIGXFSZ, former)
            assert store.load_latest()[1]["step"] == 1
            assert not list(tmp_path.glob(".*"))


class Stopped(Exception):  # noqa: N818  # it is not an error
    pass


def run(folder=None, *, stop_at=None, data=None, seed=0, every_steps=4, **changes):
    """Fit a new net, perhaps cut off at a recorded step, as a crash would."""
    net, likelihood = tiny_net(batch_shape=(2,), seed=seed), gaussian(batch_shape=(2,))

    def cut(record):
        if record.step == stop_at:
            raise Stopped

    options = {"ema_decay": 0.9, "patience": 3, "max_grad_norm": 1.0, "eval_every": 6} | changes
    history = fit(
        net,
        likelihood,
        data or tiny_data(),
        config=tiny_config(**options),
        validation=tiny_data(seed=1),
        callbacks=[cut],
        checkpoint=None if folder is None else Checkpoints(folder, every_steps=every_steps),
    )
    return weights_of(net, likelihood), history


class TestResume:
    @pytest.mark.parametrize("stop_at", [5, 10, 12, 24])
    def test_a_resumed_fit_is_bitwise_the_uninterrupted_one(self, tmp_path, stop_at):
        expected, history = run()
        with pytest.raises(Stopped):
            run(tmp_path, stop_at=stop_at)
        # Other initial weights: all that counts comes from the checkpoint.
        resumed, records = run(tmp_path, seed=5 if stop_at > 4 else 0)
        assert_bitwise(resumed, expected)
        assert records == history

    def test_weights_are_part_of_the_fit(self, tmp_path):
        x, y = tiny_data()
        weights = torch.rand(2, 40, generator=torch.Generator().manual_seed(0))
        expected, history = run(data=(x, y, weights))
        with pytest.raises(Stopped):
            run(tmp_path, stop_at=15, data=(x, y, weights))
        for other in ((x, y), (x, y, 2 * weights)):
            with pytest.raises(ConfigError, match=r"data\.weights"):
                run(tmp_path, data=other)
        resumed, records = run(tmp_path, data=(x, y, weights))
        assert_bitwise(resumed, expected)
        assert records == history

    def test_it_may_be_cut_many_times(self, tmp_path):
        expected, history = run()
        for stop_at in (5, 6, 10, 18, 25, 30):
            with pytest.raises(Stopped):
                run(tmp_path, stop_at=stop_at, every_steps=3)
        resumed, records = run(tmp_path, every_steps=3)
        assert_bitwise(resumed, expected)
        assert records == history

    def test_a_finished_fit_returns_at_once_with_the_same_result(self, tmp_path):
        first, second = run(tmp_path), run(tmp_path, stop_at=5)
        assert_bitwise(first[0], second[0])
        assert first[1] == second[1]

    def test_a_damaged_newest_checkpoint_costs_only_time(self, tmp_path):
        expected, _ = run()
        with pytest.raises(Stopped):
            run(tmp_path, stop_at=15)
        newest = max(tmp_path.glob("step-*"))
        newest.write_bytes(newest.read_bytes()[:-7])
        with pytest.warns(UserWarning, match="passed over"):
            resumed, _ = run(tmp_path)
        assert_bitwise(resumed, expected)

    def test_a_disk_that_fills_up_midway_costs_only_time(self, tmp_path, monkeypatch):
        expected, history = run()
        replace, calls = os.replace, []

        def full_at_third(source, target):
            calls.append(target)
            if len(calls) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replace(source, target)

        monkeypatch.setattr(os, "replace", full_at_third)
        with pytest.raises(ModelFileError, match=r"No space left .* intact"):
            run(tmp_path)
        assert CheckpointStore(tmp_path).load_latest()[1]["step"] == 8
        resumed, records = run(tmp_path)
        assert_bitwise(resumed, expected)
        assert records == history

    def test_another_setting_is_refused_by_name(self, tmp_path):
        run(tmp_path)
        with pytest.raises(ConfigError, match=r"config\.learning_rate was 0\.01, now it is 0\.02"):
            run(tmp_path, learning_rate=0.02)
        with pytest.raises(ConfigError, match=r"config\.patience was 3, now it is 4"):
            run(tmp_path, patience=4)
        with pytest.raises(ConfigError, match=r"data\.x"):
            run(tmp_path, data=tiny_data(seed=3))

    def test_another_model_is_refused_by_name(self, tmp_path):
        run(tmp_path)
        with pytest.raises(ConfigError, match=r"weights\.likelihood\.\w+"):
            fit(
                tiny_net(),
                gaussian(),
                tiny_data(),
                config=tiny_config(ema_decay=0.9, patience=3, max_grad_norm=1.0, eval_every=6),
                validation=tiny_data(seed=1),
                checkpoint=tmp_path,
            )


def test_checkpoints_hold_no_pickle(tmp_path):
    run(tmp_path)
    tensors, metadata = CheckpointStore(tmp_path).load_latest()
    assert metadata["step"] == 30
    assert {name.split("/")[0] for name in tensors} == {
        "weights", "adam", "average", "best", "generators", "score", "stale",
    }  # fmt: skip


def test_every_steps_is_checked(tmp_path):
    with pytest.raises(ConfigError, match="every_steps"):
        Checkpoints(tmp_path, every_steps=0)
