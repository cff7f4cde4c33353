"""ftp_session.py ADDRESS PORT NAME STEP...: one session with an FTP server; says what comes of each step.
STEP: active, passive (from here on), list, get, put (as in/NAME), missing (no such file), folder (without a data connection)."""
import ftplib
import hashlib
import io
import sys

session = ftplib.FTP(timeout=30)
print("connected", session.connect(sys.argv[1], int(sys.argv[2])).split()[0], flush=True)
print("logged in", session.login("anonymous", "me@").split()[0], flush=True)


def step(name):
    if name in ("active", "passive"):
        return session.set_pasv(name == "passive")
    if name == "folder":
        return session.pwd(), session.size("bulk")
    if name == "list":
        return sorted(session.nlst())
    if name == "get":
        digest = hashlib.sha256()
        return session.retrbinary("RETR bulk", digest.update), digest.hexdigest()
    if name == "put":
        return session.storbinary("STOR in/" + sys.argv[3], io.BytesIO(bytes(range(256)) * (20 << 12)))
    if name == "missing":
        try:
            return session.retrbinary("RETR nothing", print)
        except ftplib.error_perm as error:
            return str(error)
    raise ValueError(name)


for name in sys.argv[4:]:
    print(name, step(name), flush=True)
print("ended", session.quit(), flush=True)
