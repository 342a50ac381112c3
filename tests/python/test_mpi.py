# SPDX-License-Identifier: Apache-2.0
"""Which mpirun is taken, what it is told, and which of its lines are shown."""

import os
import shutil

import pytest
from workshop import mpi

DASHES = 74 * "-"


def shown(*lines, pid=4242):
    notes = mpi.Notes(pid)
    return "".join(notes.line(line) for line in lines) + notes.end()


def script(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_lines_of_ranks_are_shown():
    assert shown("epoch 0", "", "rank 1: CUDA error") == "epoch 0\n\nrank 1: CUDA error\n"


def test_notes_on_a_failed_rank_are_left_out():
    assert shown(DASHES, "MPI_ABORT was invoked on rank 1", DASHES) == ""
    assert shown(DASHES, "Primary job  terminated normally, but 1 process", DASHES, "after") == "after\n"
    assert shown(DASHES, "prterun detected that one or more processes", DASHES) == ""


def test_other_notes_are_shown_as_they_are():
    assert shown(DASHES, "Something else", DASHES) == f"{DASHES}\nSomething else\n{DASHES}\n"


def test_a_note_may_break_a_line_of_a_rank():
    assert shown("one ra" + DASHES, "MPI_ABORT was invoked", DASHES, "nk speaks") == "one rank speaks\n"


def test_what_a_rank_says_inside_a_note_is_shown():
    assert shown(DASHES, "MPI_ABORT was invoked", "error: of a rank", "  Errorcode: 1", DASHES) == "error: of a rank\n"


def test_a_note_that_does_not_end_is_shown():
    assert shown(DASHES, "half") == "half\n"


def test_lines_of_mpirun_itself_are_left_out():
    assert shown("[vm:0004242] [[1,0],0] ORTE_ERROR_LOG", "[vm:00017] mine") == "[vm:00017] mine\n"


@pytest.mark.parametrize(
    "line",
    [
        "[warn] Epoll MOD(1) on fd 26 failed.",
        "btl: Unable to find reachable pairing between local and remote",
        "../../../../opal/mca/btl/tcp/btl_tcp_proc.c:266:mca_btl_tcp_proc_create_interface_graph",
        "\0",
    ],
)
def test_noise_is_left_out(line):
    assert shown(line, "after") == "after\n"


def test_zeros_of_open_mpi_5_are_removed():
    assert shown("\0error: what") == "error: what\n"


def test_after_a_missed_deadline_nothing_else_counts():
    text = "error: MPI_Init took longer than 3 s"
    assert shown(text, "[vm:00017] *** An error occurred in MPI_Init", DASHES, "Something else", DASHES) == text + "\n"


def test_settings_keep_the_ranks_on_this_machine():
    found = mpi.settings("/usr/bin/orterun", {}, "/s", False)
    assert found["OMPI_MCA_plm"] == "isolated" and found["OMPI_MCA_ras"].startswith("^slurm,gridengine")
    assert found["OMPI_MCA_orte_default_hostfile"] == "none" and found["OMPI_MCA_btl"] == "self,vader"
    assert found["OMPI_MCA_orte_tmpdir_base"] == found["OMPI_MCA_btl_vader_backing_directory"] == "/s"
    assert (
        "OMPI_ALLOW_RUN_AS_ROOT" not in found
        and mpi.settings("mpirun", {}, "/s", True)["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    )


def test_open_mpi_5_keeps_its_own_names_for_shared_memory():
    assert "tcp" in mpi.settings("/usr/bin/prterun", {}, "/s", False)["OMPI_MCA_btl"].split("^")[1].split(",")


def test_settings_of_the_user_stay():
    found = mpi.settings("/usr/bin/orterun", {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_plm": "rsh"}, "/s", False)
    assert "OMPI_MCA_btl" not in found and "OMPI_MCA_plm" not in found


def test_who_names_machines_may_reach_them():
    assert "OMPI_MCA_btl" not in mpi.settings("orterun", {"OMPI_MCA_orte_default_hostfile": "/hosts"}, "/s", False)


def test_without_process_vm_readv_ranks_copy_through_shared_memory(monkeypatch):
    monkeypatch.setattr(mpi, "may_read_other_processes", lambda: False)
    assert mpi.settings("orterun", {}, "/s", False)["OMPI_MCA_btl_vader_single_copy_mechanism"] == "none"
    monkeypatch.setattr(mpi, "may_read_other_processes", lambda: True)
    assert "OMPI_MCA_btl_vader_single_copy_mechanism" not in mpi.settings("orterun", {}, "/s", False)


def test_this_process_can_read_itself():
    assert mpi._can_read_itself()


def test_the_mpirun_of_another_mpi_is_passed_over(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    other = script(first, "mpirun", "echo 'HYDRA build details:'")
    assert mpi.find_mpirun(str(first)) == (None, [other])
    assert mpi.first_line_of_version(other) == "HYDRA build details:"
    right = script(second, "mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    assert mpi.find_mpirun(f"{first}:{second}") == (right, [other])
    assert mpi.find_mpirun(str(tmp_path)) == (None, [])


def test_mpirun_is_named_by_its_real_folder(tmp_path):
    (tmp_path / "usr").mkdir()
    right = script(tmp_path / "usr", "mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    (tmp_path / "bin").symlink_to("usr")
    assert mpi.find_mpirun(str(tmp_path / "bin")) == (right, [])


@pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")
def test_the_mpirun_of_this_machine():
    assert mpi.find_mpirun(os.environ["PATH"])[0]
