# Runs in the distro as root, from bash's stdin; python3, and all that is ours, need not be there yet.
# $1: look (say what is to be done) or do; $2: user; $3: the project's folder on Windows, or -; $4: a git repository, or -.
# Each thing has a look and a deed, and prints one line. Neither reads this script away, because its stdin is nothing.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
mode=$1 user=$2 from=$3 repository=$4
home=/home/$user
project=$home/wsllama
wsllama=$project/.venv/bin/wsllama
packages=(python3 python3-venv git sudo)

step() {
    if "$2" </dev/null; then printf 'unchanged     %s\n' "$1"; return; fi
    if [ "$mode" = look ]; then printf 'would change  %s\n' "$1"; return; fi
    "$3" </dev/null >&2
    "$2" </dev/null || die "$1: this did not come true"
    printf 'changed       %s\n' "$1"
}

die() { printf '%s\n' "$*" >&2; exit 1; }
as_user() { runuser -u "$user" -- env -C / HOME="$home" USER="$user" "$@"; }

have_packages() { dpkg-query -W -f '${db:Status-Status}\n' "${packages[@]}" 2>/dev/null | grep -cx installed | grep -qx "${#packages[@]}"; }
install_packages() {
    apt-get -o DPkg::Lock::Timeout=300 -qq update
    apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends "${packages[@]}"
}

have_user() { [ "$(getent passwd "$user" | cut -d: -f6)" = "$home" ]; }
make_user() { useradd --create-home --home-dir "$home" --shell /bin/bash "$user"; }

# The user has no password, and whoever may start this distro may be root in it anyway: wsl -u root asks nothing.
rule() { printf '%s ALL=(ALL) NOPASSWD: ALL\n' "$user"; }
have_rule() { [ "$(cat /etc/sudoers.d/wsllama 2>/dev/null)" = "$(rule)" ]; }
write_rule() {
    local aside=/etc/sudoers.d/.wsllama # sudo reads no name with a dot
    install -m 0440 /dev/null "$aside"
    rule >"$aside"
    visudo -cqf "$aside"
    sync "$aside"
    mv -T "$aside" /etc/sudoers.d/wsllama
}

have_project() { [ -f "$project/deploy.py" ]; }
put_project() {
    local aside=$home/.wsllama.part source
    [ ! -e "$project" ] || die "$project is there and is not the project: move it away, then run again"
    rm -rf "$aside"
    if [ "$repository" != - ]; then
        as_user git clone --quiet "$repository" "$aside"
    else
        source=$(wslpath -au "$from")
        [ -f "$source/deploy.py" ] || die "$from is not the project: it has no deploy.py"
        cp -rT "$source" "$aside"
        rm -rf "$aside/.venv" # made for another system
        chmod +x "$aside"/scripts/{setup,demo,test}
        chown -R "$user:" "$aside"
    fi
    [ -f "$aside/deploy.py" ] || die "$repository is not the project: it has no deploy.py"
    sync -f "$aside"
    mv -T "$aside" "$project"
}

have_setup() { [ -f "$project/.venv/.made-of" ]; }
set_up() { as_user bash "$project/scripts/setup"; }

# WSL's grammar is not written down a second time: the project's own editor says what has to stand there.
wanted() { "$wsllama" wslconfig edit "$1" --kind wslconf --set boot.systemd=true --set interop.enabled=true --set "user.default=$user"; }
have_conf() {
    [ -x "$wsllama" ] || return 1
    local there=/etc/wsl.conf copy same=1
    [ -e "$there" ] || there=/dev/null
    copy=$(mktemp)
    cat "$there" >"$copy"
    if wanted "$copy" >/dev/null && cmp -s "$there" "$copy"; then same=0; fi
    rm -f "$copy"
    return $same
}
write_conf() { wanted /etc/wsl.conf; }

step "packages ${packages[*]}" have_packages install_packages
step "user $user" have_user make_user
step "sudo without a password for $user" have_rule write_rule
step "project in $project" have_project put_project
step "scripts/setup of the project" have_setup set_up
step "/etc/wsl.conf: systemd, and $user as the default user" have_conf write_conf
exit 0
# PowerShell ends what it writes to a program with CR and LF: they end this comment.
