#!/usr/bin/env bash
# Opens a report in headless Chromium: 390, 1280 and 1920 pixels wide, dark, and print. Fails if the page logs anything to the console
# or asks for anything but itself; leaves screenshots to look at beside the report. With LaTeX beside it and pdflatex at hand
# (apt-get install texlive-latex-base texlive-latex-recommended) that is compiled, too: an error or an overfull box fails.
#   ultta report runs --html report.html --latex report.tex
#   bash crates/cli/tests/report_in_browser.sh report.html [report.tex]      (CHROMIUM names another browser)
set -euo pipefail
report="$(realpath "$1")"
browser="${CHROMIUM:-/usr/bin/chromium}"
profile="$(mktemp -d)"
trap 'rm -rf "$profile"' EXIT
# hosts that the browser asks for on its own account, whatever the page
own='clients[0-9]*\.google\.com|update\.googleapis\.com|accounts\.google\.com|www\.google\.com|[a-z-]*-pa\.googleapis\.com'
look() { # name, further flags
  local name="$1"
  shift
  "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --user-data-dir="$profile/$name" --enable-logging=stderr \
    --log-net-log="$profile/$name.json" "$@" "file://$report" 2> "$profile/$name.log" > /dev/null
  if grep -q "CONSOLE" "$profile/$name.log"; then
    grep "CONSOLE" "$profile/$name.log"
    echo "$name: the page logged something" >&2
    exit 1
  fi
  if grep -oE '"url":"(https?|wss?)://[^"]+"' "$profile/$name.json" | grep -vE "://($own)/"; then
    echo "$name: requests left the page" >&2
    exit 1
  fi
}
base="${report%.html}"
look phone --window-size=390,2400 --screenshot="$base-390.png"
look laptop --window-size=1280,2400 --screenshot="$base-1280.png"
look wide --window-size=1920,2400 --screenshot="$base-1920.png"
look dark --window-size=1280,2000 --blink-settings=preferredColorScheme=0 --screenshot="$base-dark.png"
look print --print-to-pdf="$base.pdf"
for made in "$base-390.png" "$base-1280.png" "$base-1920.png" "$base-dark.png" "$base.pdf"; do
  [ -s "$made" ] || { echo "missing: $made" >&2; exit 1; }
done
passed=5
if [ $# -gt 1 ] && command -v pdflatex > /dev/null; then
  tex="$(realpath "$2")"
  (cd "$profile" && pdflatex -interaction=nonstopmode -halt-on-error -jobname=latex "$tex" > latex.out) || { tail -20 "$profile/latex.out" >&2; exit 1; }
  if grep -E "Overfull|Too many unprocessed floats|LaTeX Warning: Float too large" "$profile/latex.log"; then
    echo "LaTeX: something does not fit" >&2
    exit 1
  fi
  cp "$profile/latex.pdf" "${tex%.tex}-latex.pdf"
  passed=6
elif [ $# -gt 1 ]; then
  echo "no pdflatex: the LaTeX was not compiled"
fi
echo "$passed passed, 0 failed"
