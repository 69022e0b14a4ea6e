def measure(table, folder, quick): table.skip('stacks', 'not written')
