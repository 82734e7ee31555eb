"""nvidia-smi's answers: recorded ones as cases in tests/data/fixtures/nvidia-smi, and more of every kind, made up here."""

from __future__ import annotations

from pathlib import Path

import pytest

from wsllama.domain.nvidia_smi import Gpu, Reading, read

DATA = Path(__file__).parents[1] / "data" / "fixtures" / "nvidia-smi"
WSL = "/usr/lib/wsl/lib/nvidia-smi"
EXE = "/mnt/c/Windows/System32/nvidia-smi.exe"
QUERY = (
    f"{WSL} --query-gpu=name,memory.total,memory.used,utilization.gpu,compute_cap,driver_version --format=csv,noheader,nounits"
)

FILES: dict[str, tuple[int, str, Reading]] = {
    "blocked-list.txt": (17, f"{WSL} -L", Reading("blocked")),
    "csv-field-unknown.txt": (2, QUERY, Reading("unknown")),
    "csv-full.txt": (
        0,
        QUERY,
        Reading("ok", (Gpu("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, 1504, 6, "8.9", "591.59"),), "591.59"),
    ),
    "csv-not-supported.txt": (0, QUERY, Reading("ok", (Gpu("NVIDIA GeForce MX450", 2048, 0, None, "7.5", "512.78"),), "512.78")),
    "csv-three-columns.txt": (
        0,
        f"{WSL} --query-gpu=name,memory.total,driver_version --format=csv,noheader",
        Reading("ok", (Gpu("NVIDIA GeForce RTX 5070 Laptop GPU", 8151, None, None, None, "610.74"),), "610.74"),
    ),
    "cut-in-second-gpu.txt": (
        0,
        WSL,
        Reading("ok", (Gpu("NVIDIA GeForce RTX 4090", 24564, 1410, 1, None, "596.02"),), "596.02", "13.2"),
    ),
    "no-devices-exe-crlf.txt": (6, EXE, Reading("no_device")),
    "not-communicating-two-lines.txt": (9, WSL, Reading("no_driver")),
    "not-on-path.txt": (127, "nvidia-smi", Reading("unknown")),
    "nvml-library-missing.txt": (12, WSL, Reading("no_driver")),
    "q-log-wsl.txt": (
        0,
        f"{WSL} -q",
        Reading("ok", (Gpu("NVIDIA GeForce RTX 4090", 24564, 1907, 5, None, "546.17"),), "546.17", "12.3"),
    ),
    "r610-two-gpus.txt": (
        0,
        "nvidia-smi",
        Reading(
            "ok",
            (
                Gpu("NVIDIA GeForce RTX 3090", 24576, 20011, 7, None, "610.51.02"),
                Gpu("NVIDIA GeForce RTX 3090", 24576, 19876, 0, None, "610.51.02"),
            ),
            None,
            "13.3",
        ),
    ),
    "segfault-bare.txt": (139, WSL, Reading("crashed")),
    "util-na.txt": (
        0,
        WSL,
        Reading("ok", (Gpu("NVIDIA GeForce GTX 1660 Ti", 6144, 402, None, None, "560.94"),), "560.94", "12.6"),
    ),
    "windows-wddm-crlf.txt": (
        0,
        EXE,
        Reading("ok", (Gpu("NVIDIA GeForce RTX 3060", 12288, 1622, 11, None, "591.44"),), "591.44", "13.1"),
    ),
    "wsl-5090.txt": (
        0,
        WSL,
        Reading("ok", (Gpu("NVIDIA GeForce RTX 5090", 32607, 2890, 3, None, "581.42"),), "581.42", "13.0"),
    ),
}


def test_every_recorded_answer_has_its_reading() -> None:
    assert {p.name for p in DATA.glob("*.txt")} == set(FILES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_recorded(name: str) -> None:
    returncode, command, wanted = FILES[name]
    assert read((DATA / name).read_bytes(), returncode, command) == wanted


# --- tables


def table(header: str, *rows: tuple[str, str, str, str], after: str = "") -> str:
    """A table in the layout since 2023; a row is name and mode, bus id, memory, utilization."""
    line = "+-----------------------------------------+------------------------+----------------------+"
    text = f"Tue Mar  3 08:00:00 2026\n{line}\n| {header:<87} |\n{line}\n"
    text += "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
    text += "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
    for i, (name, bus, memory, busy) in enumerate(rows):
        text += f"|{i:>4}  {name:<34} | {bus:>22} |                  N/A |\n"
        text += f"| 30%   41C    P8             12W /  220W | {memory:>22} | {busy:>8}      Default |\n"
        text += f"|                                         |                        |                  N/A |\n{line}\n"
    return text + after


ADA = ("NVIDIA RTX 4000 SFF Ada ...    On", "00000000:01:00.0 Off", "155MiB /  20475MiB", "2%")
HEAD = "NVIDIA-SMI 575.64.01              Driver Version: 576.88         CUDA Version: 12.9"

PROCESSES = """
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|=========================================================================================|
|    0   N/A  N/A            7741      C   /opt/x/llama-server                  18022MiB  |
|    0   N/A  N/A              35      G   /Xwayland                                 N/A  |
+-----------------------------------------------------------------------------------------+
"""


def test_a_shortened_name_and_processes() -> None:
    found = read(table(HEAD, ADA, after=PROCESSES), 0, WSL)
    assert found == Reading("ok", (Gpu("NVIDIA RTX 4000 SFF Ada ...", 20475, 155, 2, None, "576.88"),), "576.88", "12.9")


@pytest.mark.parametrize("mode", ["On", "Off", "WDDM", "TCC", "MCDM", "N/A", "ERR!"])
def test_the_mode_beside_the_name_is_not_part_of_it(mode: str) -> None:
    row = (f"NVIDIA GeForce RTX 4060   {mode:>6}", "00000000:0B:00.0  On", "900MiB /   8188MiB", "17%")
    (gpu,) = read(table(HEAD, row), 0).gpus
    assert gpu == Gpu("NVIDIA GeForce RTX 4060", 8188, 900, 17, None, "576.88")


def test_a_mode_that_fills_the_cell() -> None:
    row = ("NVIDIA GeForce RTX 4070 Ti SUPER WDDM", "00000000:0B:00.0  On", "900MiB /  16376MiB", "0%")
    assert read(table(HEAD, row), 0).gpus[0].name == "NVIDIA GeForce RTX 4070 Ti SUPER"


@pytest.mark.parametrize(
    ("memory", "used"),
    [("N/A /  24564MiB", None), ("[N/A] /  24564MiB", None), ("ERR! /  24564MiB", None), ("0MiB /  24564MiB", 0)],
)
def test_memory_in_use_may_be_unknown(memory: str, used: int | None) -> None:
    row = ("NVIDIA GeForce RTX 4090        On", "00000000:01:00.0  On", memory, "N/A")
    assert read(table(HEAD, row), 0).gpus == (Gpu("NVIDIA GeForce RTX 4090", 24564, used, None, None, "576.88"),)


def test_a_card_without_memory_is_not_listed() -> None:
    lost = ("NVIDIA GeForce RTX 3080        On", "00000000:02:00.0 Off", "N/A /      N/A", "ERR!")
    found = read(table(HEAD, lost, ADA), 0)
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA RTX 4000 SFF Ada ..."]
    assert read(table(HEAD, lost), 0) == Reading("unknown", (), "576.88", "12.9")


def test_three_cards_keep_their_order() -> None:
    rows = [(f"NVIDIA A{n}                     Off", f"00000000:{n}:00.0 Off", f"1MiB /  {n}000MiB", "0%") for n in (10, 40, 16)]
    assert [(g.name, g.vram_total_mib) for g in read(table(HEAD, *rows), 0).gpus] == [
        ("NVIDIA A10", 10000),
        ("NVIDIA A40", 40000),
        ("NVIDIA A16", 16000),
    ]


def test_the_layout_of_2021() -> None:
    text = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 510.60.02    Driver Version: 512.15       CUDA Version: 11.6     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  NVIDIA GeForce ...  On   | 00000000:2B:00.0  On |                  N/A |
| N/A   41C    P8     9W /  N/A |    611MiB /  8192MiB |     N/A      Default |
|                               |                      |                  N/A |
+-------------------------------+----------------------+----------------------+
"""
    assert read(text, 0) == Reading("ok", (Gpu("NVIDIA GeForce ...", 8192, 611, None, None, "512.15"),), "512.15", "11.6")


@pytest.mark.parametrize(
    ("header", "windows", "cuda"),
    [
        ("NVIDIA-SMI 595.45.03       Driver Version: 595.71       CUDA Version: 13.2", "595.71", "13.2"),
        ("NVIDIA-SMI 615.10          KMD Version: 615.22          CUDA UMD Version: 13.4", "615.22", "13.4"),
        ("NVIDIA-SMI 580.65.06       Driver Version: 580.65.06    CUDA Version: 13.0", None, "13.0"),  # Linux' own
        ("NVIDIA-SMI 560.35.02       Driver Version: 560.94       CUDA Version: ERR!", "560.94", None),
        ("NVIDIA-SMI 560.35.02       Driver Version: 560.94       CUDA Version: N/A", "560.94", None),
        ("NVIDIA-SMI 560.35.02       Driver Version: ERR!         CUDA Version: 12.6", None, "12.6"),
    ],
)
def test_the_numbers_of_the_header(header: str, windows: str | None, cuda: str | None) -> None:
    found = read(table(header, ADA), 0)
    assert (found.status, found.driver_windows, found.cuda_version) == ("ok", windows, cuda)
    assert read(table(header), 0) == Reading("unknown", (), windows, cuda), "a header alone shows no GPU"


@pytest.mark.parametrize("cut", ["155MiB /  204", "155MiB /", ""])
def test_a_capture_that_ends_inside_the_memory(cut: str) -> None:
    text = table(HEAD, ADA)
    assert read(text[: text.index("155MiB")] + cut, 0) == Reading("unknown", (), "576.88", "12.9")


def test_a_capture_that_ends_after_the_memory() -> None:
    text = table(HEAD, ADA)
    assert read(text[: text.index("20475MiB") + 8], 0).gpus[0] == Gpu(
        "NVIDIA RTX 4000 SFF Ada ...", 20475, 155, None, None, "576.88"
    )


def test_mig_rows_are_not_cards() -> None:
    mig = "|  0    7   0   0  |              12MiB /  9856MiB   | 16      0 |  1   0    0    0    0 |\n"
    row = ("NVIDIA H100 PCIe                On", "00000000:17:00.0 Off", "40MiB /  81559MiB", "N/A")
    assert len(read(table(HEAD, row, after=mig), 0).gpus) == 1


def test_complaints_after_a_table_do_not_count() -> None:
    text = table(HEAD, ADA, after="Failed to properly shut down NVML: Driver Not Loaded\n")
    assert read(text, 0).status == "ok"


def test_utf16_and_a_byte_order_mark() -> None:
    text = table(HEAD, ADA).replace("\n", "\r\n")
    assert read(("\ufeff" + text).encode("utf-16-le"), 0, EXE) == read(text, 0)
    assert read("\ufeffNVIDIA L4, 23034, 0, 0, 8.9, 581.15\r\n".encode(), 0, QUERY).gpus[0].name == "NVIDIA L4"
    assert read(b"\xff\x00\x81 junk \xc3", 0).status == "unknown"


# --- crashes


@pytest.mark.parametrize("returncode", [139, -11, 134, -6, 137])
def test_a_signal_is_a_crash_whatever_was_printed_before(returncode: int) -> None:
    assert read("", returncode, WSL).status == "crashed"
    found = read(table(HEAD, ADA, after="Segmentation fault (core dumped)\n"), returncode, WSL)
    assert found.status == "crashed"
    assert len(found.gpus) == 1, "what was read before is kept"
    assert read(table(HEAD), returncode).status == "crashed"


def test_the_word_of_the_shell_when_a_pipe_hid_the_code() -> None:
    assert read("Segmentation fault\n", 0, f"{WSL} | cat").status == "crashed"


# --- other failures


@pytest.mark.parametrize(
    ("text", "returncode", "command", "status"),
    [
        ("Failed to initialize NVML: GPU access blocked by the operating system\n", 17, WSL, "blocked"),
        ("Failed to initialize NVML: GPU access blocked by the operating system\r\n", 255, EXE, "blocked"),
        (
            "Failed to properly shut down NVML: GPU access blocked by the operating system\n"
            "Failed to initialize NVML: GPU access blocked by the operating system\n",
            0,
            WSL,
            "blocked",
        ),
        ("", 17, WSL, "blocked"),
        ("No devices were found\n", 6, WSL, "no_device"),
        ("No devices found.\n", 0, f"{WSL} -L", "no_device"),
        ("No devices were found\n", 6, QUERY, "no_device"),
        ("", 6, WSL, "no_device"),
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n",
            18,
            "nvidia-smi",
            "no_driver",
        ),
        ("Failed to initialize NVML: Driver Not Loaded\n", 9, WSL, "no_driver"),
        (
            "NVIDIA-SMI has failed because it couldn’t communicate with the NVIDIA driver. Make sure that the latest NVIDIA"
            " driver is installed and running.\n",
            9,
            QUERY,
            "no_driver",
        ),
        (
            f"{WSL}: error while loading shared libraries: libnvidia-ml.so.1: cannot open shared object file: No such file\n",
            127,
            WSL,
            "no_driver",
        ),
        ("", 9, WSL, "no_driver"),
        ("", 12, WSL, "no_driver"),
        (f"bash: line 1: {WSL}: No such file or directory\n", 127, WSL, "no_driver"),
        (f"sh: 1: {WSL}: not found\n", 127, None, "no_driver"),
        (f"sudo: {WSL}: command not found\n", 1, f"sudo -n {WSL}", "no_driver"),
        (f"bash: Zeile 1: {WSL}: Datei oder Verzeichnis nicht gefunden\n", 127, WSL, "no_driver"),
        (f"bash: {EXE}: No such file or directory\n", 127, EXE, "no_driver"),
        ("", 127, WSL, "no_driver"),
        ("sh: 1: nvidia-smi: not found\n", 127, "nvidia-smi", "unknown"),
        ("zsh: command not found: nvidia-smi\n", 127, None, "unknown"),
        (
            "Command 'nvidia-smi' not found, but can be installed with:\napt install nvidia-utils-535\n",
            127,
            "nvidia-smi",
            "unknown",
        ),
        ("", 127, "nvidia-smi", "unknown"),
        (f"bash: {EXE}: cannot execute binary file: Exec format error\n", 126, EXE, "unknown"),
        (f"bash: {WSL}: Permission denied\n", 126, WSL, "unknown"),
        ("Failed to initialize NVML: Unknown Error\n", 255, WSL, "unknown"),
        ("Failed to initialize NVML: Insufficient Permissions\n", 4, WSL, "unknown"),
        ("Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error\n", 255, WSL, "unknown"),
        ("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1f0e2d3c-0000-1111-2222-333344445555)\n", 0, f"{WSL} -L", "unknown"),
        ("", 0, WSL, "unknown"),
        ("", 124, WSL, "unknown"),
    ],
)
def test_failures(text: str, returncode: int, command: str | None, status: str) -> None:
    assert read(text, returncode, command) == Reading(status)  # type: ignore[arg-type]


# --- CSV


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        (
            "NVIDIA GeForce RTX 3060, 12288, 79, [N/A], 8.6, 581.15",
            Gpu("NVIDIA GeForce RTX 3060", 12288, 79, None, "8.6", "581.15"),
        ),
        ("NVIDIA GB10, 122502, [N/A], 0, 12.1, 580.95.05", Gpu("NVIDIA GB10", 122502, None, 0, "12.1", "580.95.05")),
        ("NVIDIA A100, 40960, [Unknown Error], [Unknown Error], [N/A], N/A", Gpu("NVIDIA A100", 40960, None, None, None, None)),
        ("NVIDIA T4, 15360 MiB, 3 MiB, 99 %, 7.5, 566.36", Gpu("NVIDIA T4", 15360, 3, 99, "7.5", "566.36")),
    ],
)
def test_rows(line: str, gpu: Gpu) -> None:
    assert read(line + "\n", 0, QUERY).gpus == (gpu,)


def test_rows_of_two_cards_of_different_kinds() -> None:
    text = "NVIDIA TITAN V, 12288, 10, 0, 7.0, 566.36\r\nNVIDIA GeForce RTX 5080, 16303, 20, 1, 12.0, 566.36\r\n"
    found = read(text, 0, QUERY)
    assert [g.compute_cap for g in found.gpus] == ["7.0", "12.0"]
    assert found.driver_windows == "566.36"


def test_the_header_line_names_the_columns() -> None:
    text = "index, name, driver_version, memory.total [MiB], memory.used [MiB], utilization.gpu [%], compute_cap\n"
    text += "0, NVIDIA RTX A2000, 572.83, 6138 MiB, 0 MiB, 3 %, 8.6\n"
    wanted = Reading("ok", (Gpu("NVIDIA RTX A2000", 6138, 0, 3, "8.6", "572.83"),), "572.83")
    assert read(text, 0) == wanted
    assert read(text, 0, f"{WSL} --query-gpu=index,name --format=csv") == wanted


def test_columns_of_another_name_and_order() -> None:
    command = "nvidia-smi --format=csv,noheader --query-gpu=gpu_uuid,gpu_name,memory.total"
    assert read("GPU-0a, NVIDIA L4, 23034 MiB\n", 0, command).gpus == (Gpu("NVIDIA L4", 23034),)


def test_a_query_without_memory_shows_no_card() -> None:
    found = read("8.9\n", 0, f"{WSL} --query-gpu=compute_cap --format=csv,noheader")
    assert found == Reading("unknown")
    found = read("NVIDIA L4, 581.15\n", 0, f"{WSL} --query-gpu=name,driver_version --format=csv,noheader")
    assert found == Reading("unknown", (), "581.15")


def test_total_memory_that_is_not_told() -> None:
    assert read("NVIDIA GB10, [N/A], [N/A], 0, 12.1, 580.95.05\n", 0, QUERY).status == "unknown"


@pytest.mark.parametrize(
    "text",
    [
        'Field "memory.total" is not a valid field to query.\n',
        "Field not supported\n",
        "Invalid combination of input arguments.\n",
    ],
)
def test_a_query_that_was_refused(text: str) -> None:
    assert read(text, 2, QUERY) == Reading("unknown")


def test_memory_of_processes_is_not_a_card() -> None:
    assert read("79, [N/A]\n", 0, f"{WSL} --query-compute-apps=pid,used_memory --format=csv,noheader") == Reading("unknown")


# --- -q


LISTING = """\

==============NVSMI LOG==============

Timestamp                                 : Mon Jun  1 00:00:00 2026
Driver Version                            : 610.30
CUDA UMD Version                          : 13.3

Attached GPUs                             : 2
GPU 00000000:01:00.0
    Product Name                          : NVIDIA GeForce RTX 5090
    PCI
        Bus                               : 0x01
    FB Memory Usage
        Total                             : 32607 MiB
        Reserved                          : 500 MiB
        Used                              : N/A
        Free                              : 30000 MiB
    BAR1 Memory Usage
        Total                             : 32768 MiB
        Used                              : 1 MiB
    Utilization
        GPU                               : 44 %
        Memory                            : 1 %
    Processes
        Process ID                        : 31
            Name                          : /Xwayland
            Used GPU Memory               : Not available in WDDM driver model
GPU 00000000:02:00.0
    Product Name                          : NVIDIA GeForce RTX 3060
    BAR1 Memory Usage
        Total                             : 256 MiB
    FB Memory Usage
        Total                             : 12288 MiB
        Used                              : 77 MiB
    Utilization
        Gpu                               : N/A
"""


def test_a_listing_of_two_cards() -> None:
    assert read(LISTING, 0, f"{WSL} -q") == Reading(
        "ok",
        (
            Gpu("NVIDIA GeForce RTX 5090", 32607, None, 44, None, "610.30"),
            Gpu("NVIDIA GeForce RTX 3060", 12288, 77, None, None, "610.30"),
        ),
        "610.30",
        "13.3",
    )


def test_a_listing_with_the_drivers_new_name() -> None:
    assert read(LISTING.replace("Driver Version", "KMD Version"), 0).driver_windows == "610.30"


def test_a_listing_that_is_cut_before_the_memory_of_the_second() -> None:
    assert len(read(LISTING[: LISTING.index("12288")], 0).gpus) == 1


def test_a_listing_of_memory_only_has_the_address_for_a_name() -> None:
    text = "==============NVSMI LOG==============\n\nDriver Version : 581.15\nCUDA Version : 13.0\n\nAttached GPUs : 1\n"
    text += "GPU 00000000:2B:00.0\n    FB Memory Usage\n        Total : 8192 MiB\n        Used : 5 MiB\n"
    assert read(text, 0).gpus == (Gpu("GPU 00000000:2B:00.0", 8192, 5, None, None, "581.15"),)
