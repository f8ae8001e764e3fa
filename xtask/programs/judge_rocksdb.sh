# What the database has: the last number, after a check that none is missing or wrong.
[ -e db/CURRENT ] || { echo 0; exit; }
ldb --db=db checkconsistency >"$ASIDE/check" 2>&1
ldb --db=db scan 2>"$ASIDE/scan" | awk '
    BEGIN { for (i = 1; i <= 40; i++) tail = tail (i > 1 ? "," : "") i }
    { n++; if ($0 != sprintf("%06d", n) " ==> value " n " " tail && $0 != sprintf("%06d", n) " : value " n " " tail) { print "wrong: " $0; exit } }
    END { print n + 0 }'
