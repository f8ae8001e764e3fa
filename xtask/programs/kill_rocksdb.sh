# Puts one key after another, each by a process of its own, and says each number once it is acknowledged. Goes on where an earlier
# one was killed, behind the step LAST.
echo $$
n=$LAST
while n=$((n + 1)); do
    # With the pipe on another descriptor, so that its end is the end of this process too.
    ldb --db=db --create_if_missing put "$(printf %06d $n)" "value $n $(seq -s, 40)" 3>&1 >"$ASIDE/put" 2>&1 || exit 1
    echo $n
done
