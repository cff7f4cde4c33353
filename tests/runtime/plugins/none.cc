// A shared object that is not a plugin.
extern "C" [[gnu::visibility("default")]] int something_else() {
  return 1;
}
