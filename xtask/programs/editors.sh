# vim writes by way of a backup and a swap file, or in place.
seq 1 300 >a
vim -u NONE -N -es -c 'set backup writebackup backupcopy=no swapfile' -c '%s/5/five/g' -c 'wq' a
seq 1 300 >b
vim -u NONE -N -es -c 'set nobackup writebackup backupcopy=yes swapfile fsync' -c '%s/7/seven/g' -c '1,9d' -c 'wq' b
seq 1 300 >c
vim -u NONE -N -es -c 'set undofile undodir=. nowritebackup' -c '5d' -c 'w' -c 'w! d' -c 'w >> d' -c 'q' c
rm -f .c.un~ # with a time of this run
