/* Loads libraries on command, runs a function of each on a thread, and unloads them. It says "ready".

   stdin: `load PATH FUNCTION` answers `loaded`; `unload` answers `unloaded`; its end ends the program. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static volatile int stop;

static void *run(void *function) {
  ((void (*)(volatile int *))function)(&stop);
  return 0;
}

int main(void) {
  char line[4096], path[4096], name[256];
  void *library = 0;
  pthread_t thread;
  setvbuf(stdout, 0, _IOLBF, 0);
  puts("ready");
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "load %4095s %255s", path, name) == 2) {
      library = dlopen(path, RTLD_NOW);
      void *function = library ? dlsym(library, name) : 0;
      if (!function) {
        puts(dlerror());
        return 1;
      }
      stop = 0;
      pthread_create(&thread, 0, run, function);
      puts("loaded");
    } else if (strcmp(line, "unload\n") == 0) {
      stop = 1;
      pthread_join(thread, 0);
      dlclose(library);
      puts("unloaded");
    }
  }
  return 0;
}
