#!/bin/sh
# The compiler's launcher: ccache, told how it can keep what is compiled with a precompiled header.
#
# Left alone, ccache reads all 60 MB of the header again for each source, and runs the preprocessor before the compiler:
# half a second, of two that a source takes. With a sum beside the header it reads the sum; in depend mode it takes the
# compiler's own list of what was included.
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1 CCACHE_DEPEND=1

header=""
for word; do
  case $word in *.gch) header=$word ;; esac
done
[ -n "$header" ] || exec ccache "$@"
rm -f "$header.sum"
ccache "$@" || exit
sha1sum <"$header" >"$header.sum"
