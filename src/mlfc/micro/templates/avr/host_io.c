/* The host's files without a debugger. Inputs lie in the EEPROM; what is written goes to the first serial port, as
 * lines of a word and a name, a number, or digits. SPDX-License-Identifier: 0BSD */
#include "host_io.h"

#include <avr/eeprom.h>
#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>

enum { ON_A_LINE = 32 };

static const uint8_t *next_input;

static void put(char letter) {
  UCSR0B = _BV(TXEN0);
  while ((UCSR0A & _BV(UDRE0)) == 0) {
  }
  UDR0 = (uint8_t)letter;
}

static void put_digit(uint8_t value) { put("0123456789abcdef"[value & 15U]); }

void host_print(const char *text) {
  for (; *text != '\0'; ++text) {
    put(*text);
  }
}

void host_exit(int status) {
  host_print("exit ");
  if (status > 9) {
    put_digit((uint8_t)(status / 10 % 10));
  }
  put_digit((uint8_t)(status % 10));
  put('\n');
  /* idle, the serial port sends what it has; the simulator ends where nothing can wake the core */
  cli();
  for (;;) {
    sleep_mode();
  }
}

int host_open(const char *path, int for_writing) {
  if (for_writing) {
    host_print("open ");
    host_print(path);
    put('\n');
  }
  return 0;
}

int host_read(int handle, void *data, size_t nbytes) {
  (void)handle;
  if (nbytes > E2END + 1U - (size_t)next_input) {
    return -1;
  }
  eeprom_read_block(data, next_input, nbytes);
  next_input += nbytes;
  return 0;
}

int host_write(int handle, const void *data, size_t nbytes) {
  const uint8_t *bytes = data;
  (void)handle;
  for (size_t index = 0; index < nbytes; ++index) {
    if (index % ON_A_LINE == 0) {
      host_print("data ");
    }
    put_digit((uint8_t)(bytes[index] >> 4));
    put_digit(bytes[index]);
    if (index % ON_A_LINE == ON_A_LINE - 1 || index + 1 == nbytes) {
      put('\n');
    }
  }
  return 0;
}

void host_close(int handle) { (void)handle; }
