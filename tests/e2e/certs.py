"""Certificates for tests, made by openssl. From and until when one is good is said, not faked: faketime's wrapper does not run under a
process number for which a killed process has left something behind."""
import datetime
import os
import subprocess
import tempfile

import hx

EC = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
CONFIG = """[ca]
default_ca = own
[own]
database = {0}/index
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


def openssl(*words):
    done = subprocess.run(["openssl", *words], capture_output=True, timeout=hx.TIMEOUT)
    assert done.returncode == 0, done.stderr


def request(asked, private, name, extensions, key=EC):
    """A key, and what asks for a certificate of it."""
    added = [word for extension in extensions for word in ("-addext", extension)]
    openssl("req", "-newkey", *key, "-nodes", "-subj", f"/CN={name}", "-keyout", private, *added, "-out", asked)


def sign(asked, ca, ca_key, cert, days=30, since=datetime.timedelta(0)):
    """Good for that many days, from then on: a time, or how long after now. ca None: signed with its own key."""
    begins = since if isinstance(since, datetime.datetime) else datetime.datetime.now(datetime.timezone.utc) + since
    ends = begins + datetime.timedelta(days=days)
    with tempfile.TemporaryDirectory(prefix="hapax-ca-") as folder:
        for name, text in (("index", ""), ("config", CONFIG.format(folder))):
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
        openssl("ca", "-batch", "-notext", "-config", folder + "/config", *(["-cert", ca] if ca else ["-selfsign"]), "-keyfile", ca_key, "-in", asked,
                "-out", cert, "-outdir", folder, "-startdate", begins.strftime("%Y%m%d%H%M%SZ"), "-enddate", ends.strftime("%Y%m%d%H%M%SZ"))
