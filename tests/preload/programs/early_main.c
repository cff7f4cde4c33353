#include <stdio.h>
#include <stdlib.h>

extern int early_results[16];

int main(void) {
  void* volatile block = malloc(10); /* the first allocation, if none came before */
  free(block);
  for (int i = 0; i <= 12; i++) printf("%d: %d\n", i, early_results[i]);
  return 0;
}
