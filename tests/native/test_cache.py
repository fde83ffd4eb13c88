"""The cache of built libraries never loads files that another user could have written, and repairs damaged entries."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlfc.errors import OptionError, OutputError
from mlfc.library import cache
from mlfc.library.cache import cache_folder, find_entry, store_entry
from mlfc.library.toolchain import compile_cached, find_compiler
from mlfc.support.plain_file import private_folder
from tests.conftest import need

FILES = {"src/answer.c": b"int answer(void) { return 42; }\n"}
OTHERS = {"src/answer.c": b"int answer(void) { return 1; }\n"}
FLAGS = ("-O0",)
OTHER_USER = 65534
WATCHDOG_S = 300

as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be and make files of another user"
)


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr("mlfc.support.plain_file._folders", {})
    return tmp_path / "cache"


@pytest.fixture
def passable(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a cache root that other users can access, unlike the tests' own folder."""
    if find_compiler().is_zig:  # it belongs to this Python, which another user may not be allowed to run
        need("gcc", "gcc")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        monkeypatch.setattr("tests.session_cache._FOLDER", [])  # it is also in the tests' own folder
        yield Path(place)


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def owned_by(user: int, *paths: Path) -> None:
    for path in paths:
        os.chown(path, user, user, follow_symlinks=False)


def in_child(user: int, work: Callable[[], bool]) -> None:
    """Run `work` as a user in a forked child, and fail if it returns False."""
    child = os.fork()
    if child == 0:
        signal.alarm(WATCHDOG_S)
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os._exit(0 if work() else 3)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0


DISTRUSTED: dict[str, Callable[[Path], object]] = {
    "the folder is another user's": lambda base: owned_by(OTHER_USER, base / "mlfc"),
    "the root of caches is another user's": lambda base: owned_by(OTHER_USER, base),
    "the group may write to the folder": lambda base: (base / "mlfc").chmod(0o770),
    "all may write to the folder": lambda base: (base / "mlfc").chmod(0o707),
    "all may write to the root of caches": lambda base: base.chmod(0o777),
    "all may write above": lambda base: base.parent.chmod(0o777),
    "a sticky folder of another user": lambda base: (owned_by(OTHER_USER, base.parent), base.parent.chmod(0o1777)),
}


@as_root
@pytest.mark.parametrize("name", DISTRUSTED)
def test_a_cache_that_others_could_have_written_is_not_used(base: Path, name: str) -> None:
    planted = compile_cached(FILES, FLAGS)
    assert planted.parent == base / "mlfc"
    DISTRUSTED[name](base)
    with pytest.warns(UserWarning, match=r"cache of built libraries in .* is not used: .*XDG_CACHE_HOME") as said:
        found, again = (compile_cached(FILES, FLAGS) for _ in range(2))
    assert found == again
    assert len(said) == 1
    assert found.parent == private_folder() == cache_folder()
    assert answer(found) == 42
    assert found.stat().st_ino != planted.stat().st_ino


@as_root
def test_a_link_into_a_folder_of_another_user_is_not_followed(base: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    owned_by(OTHER_USER, theirs)
    base.mkdir()
    (base / "mlfc").symlink_to(theirs)
    with pytest.warns(UserWarning, match=f"theirs belongs to another user, number {OTHER_USER}"):
        assert compile_cached(FILES, FLAGS).parent == private_folder()
    assert not any(theirs.iterdir())


def test_a_link_into_an_own_folder_is(base: Path, tmp_path: Path) -> None:
    (tmp_path / "large_disk").mkdir(mode=0o700)
    base.mkdir(mode=0o700)
    (base / "mlfc").symlink_to(tmp_path / "large_disk")
    assert compile_cached(FILES, FLAGS).parent == tmp_path / "large_disk"


@as_root
def test_a_home_of_another_user_is_no_place_for_a_cache(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check HOME under ``sudo`` that keeps it: no root-owned files must appear in the user's home."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    home = tmp_path / "home"
    home.mkdir()
    owned_by(OTHER_USER, home)
    monkeypatch.setenv("HOME", str(home))
    with pytest.warns(UserWarning, match="home belongs to another user"):
        assert cache_folder() == private_folder()


@as_root
def test_users_with_one_home_load_nothing_of_each_other(passable: Path) -> None:
    planted = compile_cached(FILES, FLAGS)
    assert planted.parent == passable / "mlfc"

    def loads_its_own() -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compile_cached(FILES, FLAGS)
        return not found.is_relative_to(passable) and answer(found) == 42

    in_child(OTHER_USER, loads_its_own)
    (passable / "mlfc").chmod(0o755)
    in_child(OTHER_USER, loads_its_own)
    assert planted.is_file()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


DAMAGED: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: os.truncate(path, 3000),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "one bit": flip,
    "another library": lambda path: path.write_bytes(compile_cached(OTHERS, FLAGS).read_bytes()),
    "a link": become_link,
    "all may write to it": lambda path: path.chmod(0o777),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_entry_is_built_again(base: Path, name: str) -> None:
    path = compile_cached(FILES, FLAGS)
    sound = path.read_bytes()
    DAMAGED[name](path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = compile_cached(FILES, FLAGS)
    assert again == path
    assert not again.is_symlink()
    assert (again.read_bytes(), again.stat().st_mode & 0o777) == (sound, 0o700)
    assert answer(again) == 42


def test_what_cannot_be_replaced_is_passed_over(base: Path) -> None:
    path = compile_cached(FILES, FLAGS)
    become_folder(path)
    found = compile_cached(FILES, FLAGS)
    assert found.parent == private_folder()
    assert compile_cached(FILES, FLAGS) == found
    assert answer(found) == 42


@as_root
def test_an_entry_of_another_user_is_built_again(base: Path) -> None:
    path = compile_cached(FILES, FLAGS)
    owned_by(OTHER_USER, path)
    assert compile_cached(FILES, FLAGS) == path
    assert path.stat().st_uid == 0


def test_content_is_on_the_disk_before_its_name(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (steps.append(f"fsync {os.fstat(file).st_size}"), fsync(file))[1])
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("rename"), replace(*names))[1])
    store_entry("key", ".so", b"content")
    assert steps == ["fsync 7", "rename"]


def test_a_full_cache_costs_a_build_for_each_process_and_nothing_else(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_folder()
    replace = os.replace

    def full(source: str, target: str) -> None:
        if str(target).startswith(str(base)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    found = compile_cached({"full.c": FILES["src/answer.c"]}, FLAGS)
    assert found.parent == private_folder()
    assert compile_cached({"full.c": FILES["src/answer.c"]}, FLAGS) == found
    assert not any((base / "mlfc").glob(".mlfc-*"))
    monkeypatch.setattr(cache, "private_folder", lambda: base / "mlfc")
    with pytest.raises(OutputError, match="No space left on device"):
        store_entry("other", ".so", b"content")


@as_root
def test_a_cache_that_cannot_be_written_is_still_read(passable: Path) -> None:
    path = compile_cached(FILES, FLAGS)
    owned_by(OTHER_USER, passable, passable / "mlfc", path)
    (passable / "mlfc").chmod(0o500)

    def reads_it() -> bool:
        own = compile_cached({"other.c": FILES["src/answer.c"]}, FLAGS)
        key = path.name.split("-")[0]
        return find_entry(key, ".so") == path and not own.is_relative_to(passable) and answer(own) == 42

    in_child(OTHER_USER, reads_it)


def test_relative_folders_are_passed_over(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cache_folder() == tmp_path / "home" / ".cache" / "mlfc"
    assert not (tmp_path / "relative").exists()


def test_folders_are_made_for_their_owner_alone(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        folder = cache_folder()
    finally:
        os.umask(before)
    assert folder == tmp_path / "a" / "b" / "mlfc"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent, folder.parent.parent)} == {0o700}


def test_processes_that_build_the_same_at_once_both_have_it(base: Path) -> None:
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            signal.alarm(WATCHDOG_S)
            try:
                os._exit(0 if answer(compile_cached(FILES, FLAGS)) == 42 else 3)
            finally:
                os._exit(4)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert len(list((base / "mlfc").glob("*.so"))) == 1
    assert not list((base / "mlfc").glob(".mlfc-*"))


def stored(count: int, nbytes: int) -> list[Path]:
    """Store entries, each used one second after the previous one."""
    made = []
    for index in range(count):
        path = store_entry(f"{index:040x}", ".bin", bytes([index]) * nbytes)
        os.utime(path, (index, index))
        made.append(path)
    return made


def test_the_least_recently_used_entries_go_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stored(4, 1000)
    find_entry(f"{0:040x}", ".bin")
    others = made[0].parent / "notes.txt"
    others.write_bytes(b"x" * 5000)
    monkeypatch.setenv("MLFC_CACHE_LIMIT", "3k")
    newest = store_entry(f"{9:040x}", ".bin", b"9" * 1000)
    assert [path for path in (*made, newest) if path.exists()] == [made[0], made[3], newest]
    assert others.exists()


def test_what_was_just_built_stays_however_small_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stored(2, 10)
    monkeypatch.setenv("MLFC_CACHE_LIMIT", "1")
    newest = store_entry(f"{9:040x}", ".bin", b"9" * 1000)
    assert [path.exists() for path in (*made, newest)] == [False, False, True]


def test_cleaning_tells_what_it_removed() -> None:
    made = stored(3, 1000)
    zig = cache_folder() / "zig" / "h"
    zig.mkdir(parents=True)
    (zig / "a.txt").write_bytes(b"12345")
    assert [(part.files, part.nbytes) for part in cache.cache_contents()] == [(3, 3000), (1, 5)]
    kept = cache.clean_cache(keep=1000)
    assert (kept.files, kept.nbytes, made[2].exists()) == (2, 2000, True)
    removed = cache.clean_cache()
    assert (removed.files, removed.nbytes) == (2, 1005)
    assert list(cache_folder().iterdir()) == []


def test_a_limit_that_is_no_number_of_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFC_CACHE_LIMIT", "lots")
    with pytest.raises(OptionError, match=r"MLFC_CACHE_LIMIT: expected bytes such as 65536, 64k or 1M, got 'lots'"):
        store_entry("0" * 40, ".bin", b"")
