// A program with an interpreter in it. It prints `ready`, waits in a Python function, and ends with its input.
#include <Python.h>

int main(void) {
  Py_Initialize();
  int failed = PyRun_SimpleString(
      "import sys\n"
      "def waits():\n"
      "    sys.stdin.readline()\n"
      "print('ready', flush=True)\n"
      "waits()\n");
  Py_Finalize();
  return failed != 0;
}
