// Ends the calling thread alone (and not the process, as returning from main would).
#include <pthread.h>

void end_this_thread(void) { pthread_exit(0); }
