def measure(table, folder, quick): table.skip('own', 'not written')
