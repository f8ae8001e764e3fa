# One of CPython's own test files; says how each of its tests ended. Left out are those on files of gigabytes, since mode atomic logs
# all of that, holes too, and takes minutes; and those that repeat others with another compressor.
code=0
mkdir tmp
TMPDIR=$PWD/tmp python3 -m test --ignore test_large_file_ops --ignore '*LargeMmapTests*' --ignore '*[Bb]z2*' --ignore '*bzip2*' \
    --ignore '*[Ll]zma*' --junit-xml "$ASIDE/results" --tempdir "$PWD/tmp" "$1" >"$ASIDE/said" 2>&1 || code=$?
python3 "$PROGRAMS/python_results.py" "$ASIDE/results"
echo "exit: $code"
