# The old databases of one file, as Python has them.
python3 - <<'P'
import dbm, importlib
for name in ["gnu", "ndbm", "dumb"]:
    try:
        module = importlib.import_module("dbm." + name)
    except ImportError:
        continue
    with module.open("db." + name, "c") as db:
        for i in range(60):
            db[f"key {i}"] = b"v" * (i % 300)
        for i in range(0, 60, 3):
            del db[f"key {i}"]
    with module.open("db." + name, "r") as db:
        print(name, len(db.keys()), sum(len(db[key]) for key in db.keys()))
P
