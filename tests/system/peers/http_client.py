"""http_client.py URL...: fetches with urllib, prints size and SHA-256 of each; then runs a child process."""
import hashlib
import subprocess
import sys
import urllib.request

for url in sys.argv[1:]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        body = answer.read()
    print(len(body), hashlib.sha256(body).hexdigest())
child = subprocess.run(["/bin/sh", "-c", "echo child; exit 3"], stdout=subprocess.PIPE)
print(child.returncode, child.stdout.decode().strip())
