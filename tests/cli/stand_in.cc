// A library that does nothing to the program into which it is preloaded.
extern "C" [[gnu::visibility("default")]] int bypass_stand_in() {
  return 0;
}
