"""What is known about commands, as data: wrappers, shells, readers, and options that bite."""

from __future__ import annotations

import re

WRAPPERS: dict[str, frozenset[str]] = {
    "builtin": frozenset(),
    "busybox": frozenset(),
    "caffeinate": frozenset({"-t", "-w"}),
    "chrt": frozenset({"-T", "-P", "-D"}),
    "chroot": frozenset({"--userspec", "--groups"}),
    "command": frozenset(),
    "coproc": frozenset(),
    "doas": frozenset({"-u", "-C"}),
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
    "exec": frozenset({"-a"}),
    "flock": frozenset({"-w", "--timeout", "-E", "--conflict-exit-code"}),
    "ionice": frozenset({"-c", "--class", "-n", "--classdata", "-p"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "nohup": frozenset(),
    "nsenter": frozenset({"-t", "--target", "-S", "-G"}),
    "pkexec": frozenset({"--user"}),
    "proxychains": frozenset({"-f"}),
    "runuser": frozenset({"-u", "-g", "-G"}),
    "setarch": frozenset(),
    "setpriv": frozenset({"--reuid", "--regid"}),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "strace": frozenset({"-e", "-o", "-p", "-s", "-u"}),
    "sudo": frozenset(
        {"-u", "--user", "-g", "--group", "-h", "--host", "-p", "--prompt", "-C", "-T", "-D", "-R"}
    ),
    "systemd-run": frozenset({"-p", "--property", "-u", "--unit", "--uid", "--gid", "-E"}),
    "taskset": frozenset(),
    "time": frozenset({"-o", "-f"}),
    "timeout": frozenset({"-s", "--signal", "-k", "--kill-after"}),
    "unshare": frozenset(),
    "watch": frozenset({"-n", "--interval"}),
    "xargs": frozenset(
        {"-I", "-n", "-P", "-L", "-d", "-a", "-s", "-E", "--max-args", "--max-procs"}
    ),
    "parallel": frozenset({"-j", "--jobs", "-a"}),
}
"""Commands that run the command in their arguments, and their options that take a value."""
OPERANDS_FIRST = {"timeout": 1, "chroot": 1, "flock": 1, "taskset": 1, "setarch": 1, "chrt": 1}
"""How many operands a wrapper has before the command."""
HARMLESS_WRAPPERS = frozenset({"command", "builtin", "env", "nice", "time", "timeout", "stdbuf"})
"""Those that change nothing about what a reading command may do, with plain options."""
PLAIN_OPTIONS = re.compile(r"-[iupnskoe0v]|-\d+|-[oei]L|--(signal|kill-after|adjustment|unset)=\w+")
SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh", "ash", "fish", "mksh", "rbash"})
STRING_RUNNERS = {"su": "-c", "runuser": "-c", "script": "-c", "sg": "-c", "env": "-S"}
"""Commands that run the string behind an option as a shell would."""
PYTHONS = re.compile(r"i?python(\d(\.\d+)?)?|pypy3?")
CODE_OPTIONS = {
    "node": ("-e", "--eval", "-p"),
    "ruby": ("-e",),
    "perl": ("-e", "-E", "-ne", "-pe"),
    "php": ("-r",),
    "lua": ("-e",),
    "osascript": ("-e",),
    "Rscript": ("-e",),
    "R": ("-e",),
    "julia": ("-e",),
    "deno": ("eval",),
    "awk": ("",),
    "gawk": ("",),
    "mawk": ("",),
    "nawk": ("",),
}
"""Interpreters and the options that bring code; "" is the first operand."""

ENDS_MACHINE = frozenset({"shutdown", "reboot", "halt", "poweroff", "killall5"})
ENDS_MACHINE_VERBS = {
    "systemctl": frozenset({"reboot", "poweroff", "halt", "kexec", "rescue", "emergency"}),
    "loginctl": frozenset({"reboot", "poweroff", "halt", "terminate-user"}),
    "init": frozenset({"0", "6", "1", "s", "S"}),
    "telinit": frozenset({"0", "6", "1", "s", "S"}),
}
FORMATS = re.compile(
    r"mkfs(\..+)?|mke2fs|mkswap|wipefs|blkdiscard|sgdisk|sfdisk|fdisk|parted|cfdisk"
)
"""Programs that overwrite the structure of the disk they are given."""
ONLY_LOOKS = frozenset({"-l", "--list", "-p", "--print", "-n", "--no-act", "-h", "--help", "-V"})
DESTROYS_STORAGE = {
    "zpool": frozenset({"destroy", "labelclear"}),
    "zfs": frozenset({"destroy"}),
    "cryptsetup": frozenset({"luksFormat", "luksErase", "erase", "reencrypt"}),
    "nvme": frozenset({"format", "sanitize"}),
    "diskutil": frozenset({"eraseDisk", "eraseVolume", "partitionDisk", "zeroDisk", "secureErase"}),
    "hdparm": frozenset({"--security-erase", "--security-erase-enhanced", "--trim-sector-ranges"}),
    "lvm": frozenset({"lvremove", "vgremove", "pvremove"}),
}
DESTROYS_STORAGE_ALONE = frozenset({"lvremove", "vgremove", "pvremove"})
DELETERS = frozenset({"rm", "unlink", "shred", "srm", "rmdir", "del", "trash", "gio"})

_DIGESTS = ("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum")
METADATA = frozenset(
    {
        *("ls", "stat", "du", "basename", "dirname", "realpath", "readlink", "echo", "printf"),
        *("pwd", "which", "type", "whereis", "file", "test", "[", "true", "false", ":", "wc"),
        *("hash", "sleep", "exit", "break", "continue", "return", "df", "whoami", "id", "groups"),
        *("uname", "arch", "nproc", "uptime", "free", "lscpu", "lsblk", "tty", "locale", "seq"),
        *(
            *_DIGESTS,
            "cksum",
            "sum",
            "expr",
            "getconf",
            "cal",
            "factor",
            "dircolors",
            "shift",
            "ps",
        ),
        *("pushd", "popd", "dirs", "cd", "unset", "namei"),
    }
)
"""Commands that tell names, sizes and digests but no content; safe with any arguments."""
CONTENT = frozenset(
    {
        *("cat", "head", "tail", "cut", "tr", "nl", "rev", "tac", "paste", "column", "fold"),
        *("expand", "unexpand", "diff", "cmp", "comm", "join", "grep", "egrep", "fgrep"),
        *("strings", "od", "hexdump", "hd", "base64", "base32", "jq", "numfmt", "fmt", "pr"),
        *("zcat", "bzcat", "xzcat", "zgrep", "nm", "readelf", "look", "tsort", "iconv"),
    }
)
"""Commands that show content and, whatever their arguments, write nothing."""
BITING: dict[str, re.Pattern[str]] = {
    "date": re.compile(r"-[^-]*[sf]|--[sf]|[^-+]"),
    "du": re.compile(r"--f"),
    "file": re.compile(r"-[^-]*[Cfm]|--[cfm]"),
    "hash": re.compile(r"-"),
    "iconv": re.compile(r"-[^-]*o|--o"),
    "nm": re.compile(r"--pl"),
    "printf": re.compile(r"-v"),
    "ps": re.compile(r"[^-]*e"),
    "rg": re.compile(r"--pre|--hostname-bin|-[^-]*[z.u]|--search-zip|--hid|--unr"),
    "shuf": re.compile(r"-[^-]*o|--o"),
    "sort": re.compile(r"-[^-]*[oT]|--o|--co|--te"),
    "tree": re.compile(r"-[^-]*[oR]|--output|--from"),
    "wc": re.compile(r"--f"),
    **dict.fromkeys(_DIGESTS, re.compile(r"-[^-]*c|--c")),
}
"""Arguments that make a reading command write, run or reveal something else."""
CAREFUL = frozenset({"sort", "tree", "rg", "shuf", "date"})
"""Readers with biting options: an argument that is not known could be one."""
BARE = frozenset({"nvidia-smi", "hostname", "env", "logname", "users", "who", "last", "vmstat"})
"""Commands that read when they have no arguments."""
HAVE_VERSIONS = frozenset(
    {
        *("python", "python3", "pip", "pip3", "node", "npm", "npx", "yarn", "git", "gcc", "g++"),
        *("clang", "make", "cmake", "rustc", "cargo", "go", "java", "javac", "ruby", "perl", "R"),
        *("Rscript", "julia", "docker", "podman", "kubectl", "conda", "mamba", "uv", "poetry"),
        *("jupyter", "ipython", "pandoc", "ffmpeg", "psql", "sqlite3", "mysql", "curl", "wget"),
        *("tar", "zip", "unzip", "ssh", "bash", "zsh", "rm", "cp", "mv", "sed", "awk", "find"),
        *("nvcc", "nvidia-smi", "pytest", "ruff", "mypy", "black", "gh", "dvc", "rg", "jq", "tree"),
        *("uptime", "rsync", "xz", "gzip", "sort", "grep", "ls", "cat", "latex", "pdflatex"),
    }
)
VERSION_OPTIONS = frozenset({"--version", "-V", "--help", "-version", "-help", "version"})

VERBS: dict[str, tuple[tuple[str, ...], ...]] = {
    "pip": (("list",), ("show",), ("freeze",), ("check",), ("inspect",)),
    "pip3": (("list",), ("show",), ("freeze",), ("check",), ("inspect",)),
    "uv": (("pip", "list"), ("pip", "show"), ("pip", "freeze"), ("pip", "check")),
    "conda": (("list",), ("info",), ("env", "list")),
    "mamba": (("list",), ("info",), ("env", "list")),
    "npm": (("ls",), ("list",)),
    "cargo": (("tree",), ("metadata",)),
    "docker": (("ps",), ("images",), ("version",)),
    "jupyter": (("kernelspec", "list"), ("--paths",), ("labextension", "list")),
    "ollama": (("list",), ("ps",)),
    "unzip": (("-l",), ("-t",)),
    "nvidia-smi": (("-L",), ("-q",)),
    "hostname": (("-f",), ("-i",), ("-I",), ("-s",)),
}
"""Subcommands that only read, given nothing but names and `VERB_OPTIONS`."""
VERB_OPTIONS = re.compile(
    r"-[vlqan]|--(outdated|uptodate|user|local|not-required|all|json|format=\w+|depth=\d+|export"
    r"|explicit|files|verbose|name|quiet)|\w[\w.<>=-]*"
)

TAINTED_VARIABLES = re.compile(
    r"PATH|.*_PATH|LD_.*|DYLD_.*|IFS|(BASH_)?ENV|BASH_.*|SHELLOPTS|BASHOPTS|PS\d|PROMPT_.*|GIT_.*"
    r"|.*PAGER|.*EDITOR|VISUAL|BROWSER|LESS.*|PYTHON.*|PERL.*|RUBY.*|NODE_.*|GREP_.*|TAR_OPTIONS"
    r"|XDG_.*|HOME|CDPATH|GLOBIGNORE|SSH_.*|.*_proxy|.*_PROXY|HERMES_.*|JUPYTER.*|IPYTHON.*|TMPDIR"
    r"|MANPAGER|SHELL|PIP_.*|UV_.*|NPM_.*|npm_.*|DOCKER_.*|JAVA_TOOL_OPTIONS|R_.*"
)
"""Variables through which a harmless command can be made to run something else."""
