# Sourced by the scripts that make an environment, with $folder and what it is made from, $wanted.
# Ends the script where that is done; else lets one process at a time go on. The stamp is written
# last, so that an interrupted install is seen. $check: a command that holds in a sound one.
stamp=$folder/.c2c-stamp
done_already() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && ${check:-true} 2>/dev/null
}
if done_already; then exit 0; fi

# Two calls at once (make -j, two terminals): the second waits, then finds the work done.
if [ -z "${C2C_LOCKED:-}" ] && command -v flock >/dev/null 2>&1; then
    C2C_LOCKED=1 exec flock .venv-lock ".ci/$(basename "$0")" "$@"
fi
if done_already; then exit 0; fi

made() { printf '%s' "$wanted" >"$stamp"; }
