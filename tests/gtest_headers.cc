// Nothing but a place for the headers that every unit test includes: precompiled once, for all of them.
int main() {
  return 0;
}
