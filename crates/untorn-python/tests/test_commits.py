"""The stream of commits."""

import datetime
import subprocess
import sys

import pytest

import untorn


def test_each_commit_comes_once_with_its_bytes(tmp_path):
    path = tmp_path / "f"
    with untorn.open(path, "x+", 8192, commit_log=1 << 20) as f:
        start = f.info()["commit"]
        stream = untorn.commits(path, start=start)
        assert list(stream) == []
        f.write_at(100, b"one")
        f.write_at(5000, b"two")
        number = f.commit()
        (commit,) = stream
        assert commit.number == number and stream.position == number and commit.previous >= start
        assert commit.changes == ((100, b"one"), (5000, b"two"))
        assert commit.len == 8192 and commit.shortest >= 8192
        assert abs(commit.time - datetime.datetime.now(datetime.timezone.utc)) < datetime.timedelta(minutes=1)
        assert repr(commit).startswith("<untorn.Commit ")
        # An iteration that has ended is taken up again.
        f.write_at(7, b"three")
        f.commit()
        assert [commit.changes for commit in stream] == [((7, b"three"),)]
        stream.close()
        with pytest.raises(ValueError):
            next(stream)
    # All that the log has, after the close, too.
    with untorn.commits(path) as stream:
        assert [commit.changes[0][1] for commit in stream][-2:] == [b"one", b"three"]


def test_what_no_stream_can_give_is_an_error(tmp_path):
    path = tmp_path / "f"
    untorn.open(path, "x+", 4096).close()
    with pytest.raises(untorn.CommitsMissingError):
        untorn.commits(path)
    untorn.open(path, commit_log=1 << 20).close()
    with pytest.raises(untorn.NoSuchCommitError, match="its last one is"):
        untorn.commits(path, start=1 << 40)
    with pytest.raises(ValueError):
        untorn.commits(path, timeout=-1.0)
    with untorn.commits(path) as stream, pytest.raises(untorn.InvalidError, match="consumer"):
        stream.acknowledge(0)


def test_a_consumer_goes_on_in_another_process(tmp_path):
    path = tmp_path / "f"
    read = """
import sys, untorn
with untorn.commits(sys.argv[1], consumer="one") as stream:
    for commit in stream:
        print(commit.changes[0][1].decode())
        stream.acknowledge(commit.number)
"""
    with untorn.open(path, "x+", 4096, commit_log=1 << 20) as f:
        for words in (["a"], ["b", "c"], []):
            for word in words:
                f.write_at(0, word.encode())
                f.commit()
            told = subprocess.run([sys.executable, "-c", read, path], check=True, capture_output=True, text=True)
            assert told.stdout.split() == words
    assert untorn.forget_consumer(path, "one") and not untorn.forget_consumer(path, "one")


def test_a_commit_that_consumers_are_awaited_for(tmp_path):
    path = tmp_path / "f"
    with pytest.raises(ValueError, match="needs a commit_log"):
        untorn.open(path, "x+", 4096, commit_log_await=True)
    with untorn.open(path, "x+", 4096, commit_log=1 << 20, commit_log_block=0.01, commit_log_await=True) as f:
        f.write_at(0, b"alpha")
        with pytest.raises(untorn.NotAcknowledgedError, match="has no consumer"):
            f.commit()
        stream = untorn.commits(path, consumer="one")
        with pytest.raises(untorn.NotAcknowledgedError, match="'one'|\"one\""):
            f.commit()
        for commit in stream:
            stream.acknowledge(commit.number)
        assert f.commit() == commit.number


def test_a_log_that_blocks_refuses_commits_until_the_consumer_gets_on(tmp_path):
    path = tmp_path / "f"
    with untorn.open(path, "x+", 65536, commit_log=1 << 17, commit_log_block=0) as f:
        stream = untorn.commits(path, consumer="slow")
        with pytest.raises(untorn.ConsumerBehindError, match="--forget slow"):
            for n in range(100):
                f.write_at(0, bytes([n]) * 30000)
                f.commit()
        for commit in stream:
            stream.acknowledge(commit.number)
        f.commit()
        assert len(list(stream)) == 1
