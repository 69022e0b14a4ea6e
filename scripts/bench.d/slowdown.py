def measure(table, folder, quick): table.skip('slowdown', 'not written')
