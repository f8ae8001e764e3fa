"""What the programs that make and remove files have in common."""

import os


def there(name):
    """What a file holds, if there is one."""
    try:
        with open(name, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def remove(name):
    """Removes a file, if there is one."""
    try:
        os.unlink(name)
    except FileNotFoundError:
        pass
